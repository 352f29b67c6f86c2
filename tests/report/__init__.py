"""Tests of reports and comparisons of runs."""

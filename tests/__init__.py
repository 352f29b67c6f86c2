"""Tests of testbed and its protocols."""

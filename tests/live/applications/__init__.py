"""Tests of unmodified applications in nodes."""

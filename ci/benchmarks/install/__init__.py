"""Benchmark of an installation."""

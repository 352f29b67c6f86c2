"""Unit tests of the benchmarks' targets."""

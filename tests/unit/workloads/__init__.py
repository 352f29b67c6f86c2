"""Unit tests of workloads."""

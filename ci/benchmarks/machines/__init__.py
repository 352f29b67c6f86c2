"""Benchmark of clusters that are spread over machines."""

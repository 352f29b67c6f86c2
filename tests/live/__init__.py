"""Tests of clusters in network namespaces, with real frames."""

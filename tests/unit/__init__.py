"""Unit tests: one part at a time, without namespaces."""

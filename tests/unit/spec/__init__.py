"""Unit tests of cluster descriptions, scenarios and layouts."""

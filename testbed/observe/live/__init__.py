"""Snapshots of a running cluster, taken every second at little cost."""

"""Snapshots of a running cluster, which are cheap enough to be taken every second."""

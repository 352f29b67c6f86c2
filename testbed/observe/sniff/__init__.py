"""Capture of the frames of a running cluster, each with its fate."""

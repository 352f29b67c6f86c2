"""Frames of a cluster that is up, as they pass, each with its fate."""

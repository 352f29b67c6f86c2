"""Processes that run while a cluster is up, above all the relay, and their files."""

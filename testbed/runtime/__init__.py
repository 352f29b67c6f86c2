"""Processes of a running cluster or run (relay, node processes, NIC agents), and their files."""

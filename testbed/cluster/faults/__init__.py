"""Faults of a cluster that is up: impairments, rules, cut cables, partitions, background load."""

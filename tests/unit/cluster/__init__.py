"""Unit tests of cluster plans, records and faults, against a model of the kernel."""

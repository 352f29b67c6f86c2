"""Programs and shells in the nodes of a running cluster."""

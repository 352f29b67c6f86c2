"""Access to the nodes of a running cluster: programs, and shells by ssh."""

"""What can be seen of a running cluster: captures of its links."""

"""Processes of a cluster that outlive commands: namespace holder, supervisor, relay, agents of shared NICs."""

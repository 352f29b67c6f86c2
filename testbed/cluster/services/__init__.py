"""Processes that live with a cluster: namespace holder, supervisor, relay, agents of shared NICs."""

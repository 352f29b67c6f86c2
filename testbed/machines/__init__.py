"""Clusters on several machines: workers there, placement of nodes, links between machines."""

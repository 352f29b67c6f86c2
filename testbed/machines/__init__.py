"""Clusters on several machines: workers on the machines, placement of nodes, and links between machines."""

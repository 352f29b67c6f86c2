"""A protocol and a workload of somebody else's, installed as a package of its own."""

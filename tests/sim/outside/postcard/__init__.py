"""A third-party protocol and workload, installed as a package of its own."""

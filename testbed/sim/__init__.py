"""The simulator: a cluster's hosts, NICs, switches and links in one process, on a virtual clock."""

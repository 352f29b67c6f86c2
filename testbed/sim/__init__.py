"""The simulator: a description's NICs, hosts, switches and links in one engine, on a virtual clock."""

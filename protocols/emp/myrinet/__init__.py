"""EMP's frames as Myrinet packets, for source-routed networks: `protocols.emp.frames` after a Myrinet packet type."""

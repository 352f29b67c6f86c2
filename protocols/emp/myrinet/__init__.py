"""EMP's frames as Myrinet packets, for source-routed networks: `protocols.emp.frames` behind a packet type of their own."""

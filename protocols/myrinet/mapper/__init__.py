"""The mapper of a source-routed network: discovers the topology, takes part in the election of a leader, and gives every
NIC its routes.

Chun, Mainwaring and Culler (IEEE Micro 18(1), 1998) have privileged mapper daemons, one for each interface, that probe
and discover the current topology; given that, they elect a leader that derives a set of mutually deadlock-free routes
and distributes it to all NICs in the system. Sans-IO: `mapper.Mapper` is given frames and the time.
"""

"""The mapper of AM-II's network: it finds out the topology, agrees with others on a leader, and gives every NIC its routes.

"Some privileged mapper daemons, one for each interface, probe and discover the current network topology. Given the current
topology, the daemons elect a leader that derives and distributes a set of mutually deadlock-free routes to all NICs in the
system" (Chun, Mainwaring, Culler, IEEE Micro 18(1), 1998). Sans-IO: `mapper.Mapper` is given frames and the time.
"""

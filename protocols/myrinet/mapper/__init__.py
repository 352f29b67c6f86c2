"""The mapper of a source-routed network: it discovers the topology, takes part in the election of a leader, and
distributes routes to all NICs.

Chun, Mainwaring and Culler (IEEE Micro 18(1), 1998) describe privileged mapper daemons, one for each interface, that
probe and discover the current topology, and elect a leader that derives a set of mutually deadlock-free routes and
distributes it to all NICs in the system. `mapper.Mapper` is sans-IO: frames and the time are arguments.
"""

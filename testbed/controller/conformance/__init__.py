"""Conformance: named checks of any protocol, from a self-send to a swarm of random cases.

`suite` has the list. Checks use a protocol only through MPI's device, in the simulation, or in namespaces if they need real
frames or processes. Schedules of fates and cases drawn from seeds also serve tests of single protocols.
"""

"""Conformance: named checks of anybody's protocol, from a self-send to a swarm of random cases, each in its own module.

`suite` has the list. Checks speak to a protocol through MPI's device alone, in the simulation, and in namespaces where real
frames or processes are what is checked. What they are made of, schedules of fates and cases drawn from seeds, also serves
the tests of single protocols.
"""

"""Postcard: messages cut into cards of a frame each, one in flight to each peer, resent until its receipt arrives.

`frames` has the wire format, `codec` is made from it; `firmware` is the NIC's, `host` the library of its programs, which is
an endpoint for MPI; `descriptors` pass between them; with `split_driver` they are two processes; `greetings` is a workload;
`protocol` ties them together for testbed.
"""

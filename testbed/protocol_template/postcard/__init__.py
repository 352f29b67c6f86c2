"""Postcard: messages are cut into cards of one frame each. One card is in flight to each peer, and is resent until its
receipt arrives.

`frames` has the wire format, and `codec` is generated from it. `firmware` runs on the NIC, `host` is the library of its
programs and an endpoint for MPI; they exchange `descriptors`. With `split_driver` firmware and library run in two processes.
`greetings` is a workload, and `protocol` registers all of them with testbed.
"""

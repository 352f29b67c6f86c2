"""Myrinet as a sans-IO model: source-routed crossbar switches, cut-through with back-pressure, and deadlock recovery.

Seitz and others, "Myrinet: A Gigabit-per-Second Local Area Network", IEEE Micro 15(1), 1995; ANSI/VITA 26-1998. A frame has
an Ethernet header, so that real interfaces carry it; it takes no time in the model. The Myrinet packet follows: route,
packet type, payload, and a CRC-8 as the last byte.

- `route`: route bytes and CRC-8; `switch`: output and arbitration; `settings`: the hardware's parameters.
- `channel`: one direction of a link; `worm`: schedule of a frame over several channels; `network`: the network.
- `fabric`: the registered fabric.
"""

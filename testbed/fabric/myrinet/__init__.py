"""Myrinet as a sans-IO model: source-routed crossbar switches, cut-through with back-pressure, and deadlock recovery.

Seitz and others, "Myrinet: A Gigabit-per-Second Local Area Network", IEEE Micro 15(1), 1995; ANSI/VITA 26-1998. A frame
stands behind an Ethernet header, which carries it through real interfaces and takes no time here: behind it come the
route, the packet's type, its payload, and a CRC-8 as the last byte.

- `route`: route bytes and CRC-8; `switch`: the choice of an output; `settings`: the hardware's times.
- `channel`: one direction of a link; `worm`: schedule of a frame over several channels; `network`: all together.
- `fabric`: the registered fabric.
"""

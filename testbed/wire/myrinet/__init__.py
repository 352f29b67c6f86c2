"""Myrinet as a sans-IO model: source-routed crossbar switches, cut-through with back-pressure, and what breaks a deadlock.

Seitz and others, "Myrinet: A Gigabit-per-Second Local Area Network", IEEE Micro 15(1), 1995; ANSI/VITA 26-1998. A frame
stands behind an Ethernet header, which carries it through real interfaces and counts for nothing here: behind it come the
route, the packet's type, what it carries, and a CRC-8 as the last byte.

- `route`: what a switch reads and changes of a frame; `switch`: which output it asks for; `settings`: hardware's times.
- `channel`: one direction of a link; `worm`: when bytes pass over several; `network`: all of it, and what breaks a deadlock.
- `stop_go`: back-pressure where a NIC is at a real interface, which has none.
"""

"""Myrinet packets: the part common to all protocols that send through its switches (ANSI/VITA 26-1998).

Behind the Ethernet header follow the remaining source route, the packet type, which identifies the protocol, and the
type's payload; the last byte is a CRC-8. Route and CRC-8 change on the way, so a protocol's codec does not include
them.

- `frames`: the definition, as a Scapy layer.
- `envelope`: converts a codec's frame to its form on the wire, and back.
- `fields`: field definitions for rules and captures.
- `mapper`: finds the network and its routes.
- `routed_nic`: routes and a mapper, below firmware that knows none.
"""

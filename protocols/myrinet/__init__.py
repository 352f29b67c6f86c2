"""Myrinet packets: the format common to all protocols on Myrinet switches (ANSI/VITA 26-1998).

The Ethernet header is followed by the remaining source route, the packet type, which identifies the protocol, and the
payload; the last byte is a CRC-8. Switches change route and CRC-8, so a protocol's codec does not include them.

- `frames`: the definition of the format, as a Scapy layer.
- `envelope`: converts a codec's frame to its wire format, and back.
- `fields`: field definitions for rules and captures.
- `mapper`: discovers the network, and computes and distributes routes.
- `routed_nic`: routes and a mapper, below firmware without source routing.
"""

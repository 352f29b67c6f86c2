"""Myrinet's packets: what all protocols have in common that send theirs through its switches (ANSI/VITA 26-1998).

Behind the Ethernet header stand what is left of the source route, the packet type, by which protocols are told apart, and
the type's payload; the last byte is a CRC-8. Route and CRC-8 change on the way: a protocol's codec knows nothing of them.

- `frames`: the definition, as a Scapy layer.
- `envelope`: a frame of a codec's put on the wire, and taken from it.
- `fields`: what rules and captures have to know.
"""

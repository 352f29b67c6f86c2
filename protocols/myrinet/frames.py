"""A Myrinet packet after an Ethernet header, as a Scapy layer.

The packet has a source route, of which every switch consumes a byte; the packet type, to which upper layers are bound;
the upper layers' data; and a CRC-8 over all of these (ANSI/VITA 26-1998). `envelope.py` implements the same format
without Scapy.

A protocol's layer is bound to this layer, and follows it in the protocol's STACKS:

    bind_layers(Myrinet, Mine, type=0x0007)
    STACKS = {"frame": (Ether, Myrinet, Mine)}
"""

from __future__ import annotations

from scapy.fields import XShortField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.frames import LastByteField, RouteField
from protocols.myrinet.envelope import crc8, deltas
from protocols.myrinet.fields import ETHERTYPE


class Route(RouteField):
    """A source route, shown as the port deltas of the switches."""

    def i2repr(self, pkt: Packet | None, x: bytes) -> str:  # noqa: ARG002
        return " ".join(f"{delta:+}" for delta in deltas(x)) or "used up"


class CRC8(LastByteField):
    """A CRC-8. A wrong value is shown with the computed value."""

    def i2repr(self, pkt: Packet | None, x: int | None) -> str:
        expected = pkt.computed if isinstance(pkt, Myrinet) else None
        value = "none" if x is None else f"0x{x:02x}"
        return value if expected in (None, x) else f"{value}, wrong: it would be 0x{expected:02x}"


class Myrinet(Packet):
    """Route, type and CRC-8 of a packet: 3 bytes and the route."""

    name = "Myrinet"
    fields_desc = [  # noqa: RUF012
        Route("source_route", b""),
        XShortField("type", 0),  # below 0x8000
        CRC8("crc8", None),
    ]
    computed: int | None = None
    """The CRC-8 computed from a dissected packet."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        packet = pkt + pay + self.payload.build_padding()
        return packet + bytes((crc8(packet) if self.crc8 is None else self.crc8,))

    def build_padding(self) -> bytes:
        return b""  # `post_build` has put the padding before the CRC-8

    def pre_dissect(self, s: bytes) -> bytes:
        self.computed = crc8(s[:-1]) if s else None
        return s

    def post_dissect(self, s: bytes) -> bytes:
        self.raw_packet_cache = None  # the cache lacks the last byte
        return s


bind_layers(Ether, Myrinet, type=ETHERTYPE)

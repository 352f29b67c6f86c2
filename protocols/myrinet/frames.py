"""A Myrinet packet, behind an Ethernet header: the one definition of its format, as a Scapy layer.

Its source route, of which every switch takes a byte; the packet type, by which the layers above are bound; and, behind
what they have, a CRC-8 over all of that (ANSI/VITA 26-1998). `envelope.py` does the same without Scapy.

A protocol's own layer is bound to it, and stands on it in the protocol's STACKS:

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
    """Shown as ports: how many further each switch sends it."""

    def i2repr(self, pkt: Packet | None, x: bytes) -> str:  # noqa: ARG002
        return " ".join(f"{delta:+}" for delta in deltas(x)) or "used up"


class CRC8(LastByteField):
    """Shown with what is wrong with it."""

    def i2repr(self, pkt: Packet | None, x: int | None) -> str:
        right = pkt.computed if isinstance(pkt, Myrinet) else None
        shown = "none" if x is None else f"0x{x:02x}"
        return shown if right in (None, x) else f"{shown}, wrong: it would be 0x{right:02x}"


class Myrinet(Packet):
    """Parts that all packets have: 3 bytes, and the route."""

    name = "Myrinet"
    fields_desc = [  # noqa: RUF012
        Route("source_route", b""),
        XShortField("type", 0),  # below 0x8000
        CRC8("crc8", None),
    ]
    computed: int | None = None
    """The CRC-8 that a packet that was dissected should have."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        packet = pkt + pay + self.payload.build_padding()
        return packet + bytes((crc8(packet) if self.crc8 is None else self.crc8,))

    def build_padding(self) -> bytes:
        return b""  # it stands in front of the CRC-8

    def pre_dissect(self, s: bytes) -> bytes:
        self.computed = crc8(s[:-1]) if s else None
        return s

    def post_dissect(self, s: bytes) -> bytes:
        self.raw_packet_cache = None  # it would not have the last byte
        return s


bind_layers(Ether, Myrinet, type=ETHERTYPE)

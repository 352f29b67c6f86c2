"""Frames of an invented protocol, with features that the real protocols lack, for tests of codecs.

Bit fields, flags next to bits, names that Python or the codec needs, one name in several layers, two layers bound to one,
three layers above one another, and neither a length nor a check.
"""

from __future__ import annotations

from scapy.fields import BitEnumField, BitField, ByteField, FlagsField, IntField, LongField, MACField, ShortField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

ETHERTYPE = 0x88B9  # of no protocol


class Base(Packet):
    fields_desc = [  # noqa: RUF012
        BitEnumField("version", 2, 4, {2: "TWO"}),
        BitField("credit", 0, 12),
        FlagsField("flags", 0, 3, ["FIRST", "LAST"]),
        BitEnumField("kind", 1, 5, {1: "CALL", 2: "REPLY", 9: "ORDER"}),
        ByteField("hash", 0),
        ShortField("raw", 0),
    ]


class Call(Packet):
    fields_desc = [LongField("address", 0), IntField("id", 0), ByteField("then", 0)]  # noqa: RUF012


class Reply(Packet):
    fields_desc = [MACField("via", "02:00:00:00:00:00"), ByteField("id", 0)]  # noqa: RUF012


class More(Packet):
    fields_desc = [BitField("id", 0, 1), BitField("src", 0, 31)]  # noqa: RUF012


bind_layers(Ether, Base, type=ETHERTYPE)
bind_layers(Base, Call, kind=1)
bind_layers(Base, Reply, kind=2)
bind_layers(Call, More, then=7)

STACKS: dict[str, tuple[type[Packet], ...]] = {
    "order": (Ether, Base),
    "call": (Ether, Base, Call),
    "reply": (Ether, Base, Reply),
    "more": (Ether, Base, Call, More),
}
PREFIX = "hash"
FLOW = ("kind",)

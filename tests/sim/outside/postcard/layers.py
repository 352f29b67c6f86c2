"""Layers of the postcard frames in Scapy."""

from scapy.fields import ByteEnumField, IntField, ShortField, XByteField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from postcard.frames import ETHERTYPE, NAMES


class Postcard(Packet):
    name = "Postcard"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("kind", 1, NAMES["kind"]),
        XByteField("unused", 0),
        ShortField("sender", 0),
        IntField("number", 0),
        ShortField("context", 0),
        IntField("tag", 0),
        ShortField("length", 0),
    ]


LENGTH = "length"
bind_layers(Ether, Postcard, type=ETHERTYPE)

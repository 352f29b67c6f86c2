"""Layers of an invented protocol with kinds of fields that the built-in ones lack.

These are both byte orders, signed numbers, floats, addresses, optional fields, lengths given by other fields, and numbers
of three and eight bytes.
"""

from __future__ import annotations

from scapy.fields import (
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    FieldLenField,
    FlagsField,
    IEEEFloatField,
    IntField,
    IP6Field,
    IPField,
    LEIntField,
    LELongField,
    LEShortEnumField,
    LEThreeBytesField,
    LongField,
    MACField,
    ShortField,
    SignedIntField,
    SignedShortField,
    StrField,
    StrFixedLenField,
    StrLenField,
    ThreeBytesField,
    XByteField,
    XLongField,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

ETHERTYPE = 0x9A9A


class ManyFields(Packet):
    name = "ManyFields"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("kind", 0, {0: "PLAIN", 1: "NAMED", 2: "LONG"}),
        FlagsField("has", 0, 4, ["ADDRESS", "TIME"]),
        BitField("level", 0, 12),
        BitField("whole", 0, 64),
        LEShortEnumField("port", 0, {80: "WEB", 443: "SECURE"}),
        LEIntField("serial", 0),
        LELongField("stamp", 0),
        LongField("far", 0),
        XLongField("key", 0),
        ThreeBytesField("three", 0),
        LEThreeBytesField("three_little", 0),
        SignedShortField("change", 0),
        SignedIntField("sum", 0),
        IEEEFloatField("ratio", 0),
        MACField("via", "02:00:00:00:00:00"),
        IPField("host", "0.0.0.0"),
        IP6Field("host6", "::"),
        ConditionalField(IPField("address", "10.0.0.1"), lambda packet: packet.has.ADDRESS),
        ConditionalField(IntField("time", 0), lambda packet: packet.has & 2 and packet.kind != 1),
        FieldLenField("size", None, fmt="B", length_of="text", adjust=lambda _, length: length // 2),
        StrLenField("text", b"", length_from=lambda packet: packet.size * 2),
        StrFixedLenField("seal", b"\0\0\0", 3),
        XByteField("end", 0),
    ]


class Named(Packet):
    fields_desc = [ByteField("end", 0), ShortField("padding", 0)]  # noqa: RUF012


class Long(Packet):
    fields_desc = [StrField("rest", b"")]  # noqa: RUF012


bind_layers(Ether, ManyFields, type=ETHERTYPE)
bind_layers(ManyFields, Named, kind=1)
bind_layers(ManyFields, Long, kind=2)

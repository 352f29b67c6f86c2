"""AM-II's frames: the one definition of their format, as Scapy layers.

They are Myrinet's packets of one type (`protocols.myrinet`).

The paper names what a packet carries: "logical channel, sequence number, time stamp", the endpoints and the tag ("Transport
protocols"); "the NACK's time stamp" is the packet's. Layout and widths are ours, as are the incarnations, the generation
of a channel, and the CRC-32. Numbers are in network byte order. `codec.py` is made from this file.
"""

from __future__ import annotations

from typing import Final

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FlagsField,
    IntField,
    ShortField,
    XIntField,
    XLongField,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.frame_kinds import Kind
from protocols.core.frames import LengthCheckLayer
from protocols.myrinet.frames import Myrinet

PACKET_TYPE: Final = 0x0004
"""One of those that Myrinet leaves to software (ANSI/VITA 26-1998)."""

MESSAGE: Final = 1
ACK: Final = 2
NACK: Final = 3


class AM2(LengthCheckLayer):
    """The header, 28 bytes. An answer (ACK, NACK) is one: channel, generation, sequence and stamp are the packet's."""

    name = "AM-II"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("kind", MESSAGE, {MESSAGE: "MESSAGE", ACK: "ACK", NACK: "NACK"}),
        # Why a packet was not taken. The first four pass: it is sent again. The others undo the message.
        ByteEnumField(
            "reason",
            0,
            {
                0: "NONE",
                1: "OVERRUN",
                2: "NOT_RESIDENT",
                3: "NO_MAPPING",
                4: "BAD_TAG",
                5: "NO_ENDPOINT",
                6: "BAD_SEGMENT",
                7: "RESTARTED",
            },
        ),
        ShortField("source", 0),  # NIC that sends this
        ShortField("destination", 0),  # NIC that it is for
        XIntField("sender", 0),  # incarnation of the source
        XIntField("receiver", 0),  # incarnation of the destination, as far as known; 0: unknown
        ByteField("channel", 0),
        ByteField("generation", 0),  # of the channel: one more whenever it is given up with a packet not answered
        ShortField("sequence", 0),  # of the packet on its channel
        IntField("stamp", 0),  # of this sending of the packet
        ShortField("length", None),  # bytes of payload: arguments, then data
        # CRC-32 as in zlib over the frame from its first byte to the end of the payload, without this field.
        XIntField("check", None),
    ]

    def mysummary(self) -> str:
        return str(self.sprintf("AM-II %AM2.kind% channel %AM2.channel% sequence %AM2.sequence%"))


class AM2Message(Packet):
    """The message's header, 28 bytes, in front of its arguments, of four bytes each, and its data."""

    name = "AM-II message"
    fields_desc = [  # noqa: RUF012
        # SHORT: words only. MEDIUM: data for the handler. BULK: data for the destination's segment.
        ByteEnumField("form", 0, {0: "SHORT", 1: "MEDIUM", 2: "BULK", 3: "GONE"}),
        FlagsField("flags", 0, 8, ["REPLY"]),
        ByteField("handler", 0),
        ByteField("arguments", 0),  # how many
        ShortField("origin", 0),  # endpoint that sends it, in its NIC
        ShortField("endpoint", 0),  # endpoint that it is for, in its NIC
        XLongField("tag", 0),
        IntField("message", 0),  # as its origin counts its requests; of a REPLY the request's
        IntField("offset", 0),  # BULK: of this packet's data in the segment
        IntField("total", 0),  # BULK: bytes of the whole message, of which this packet has some
    ]


bind_layers(Myrinet, AM2, type=PACKET_TYPE)
bind_layers(AM2, AM2Message, kind=MESSAGE)

# What the codec is made for: as `codegen` says.
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {
    "answer": (Ether, Myrinet, AM2),
    "message": (Ether, Myrinet, AM2, AM2Message),
}
LENGTH: Final = "length"
CHECK: Final = "check"
FLOW: Final = ("kind", "channel")

# For people: a packet in words. An answer names its packet by the channel, which has one packet at a time.
KIND: Final = "kind"
KINDS: Final = {
    MESSAGE: Kind(
        "data",
        "AM-II {form}[ {flags}] message {message} of endpoint {source}.{origin} to {destination}.{endpoint}, "
        "handler {handler}, {length} bytes, channel {channel} sequence {sequence}",
        message=("origin", "message"),
        within=("sender", "flags", "endpoint"),
        part="offset",
        total="total",
        handles=(("channel", "channel"),),
    ),
    ACK: Kind("ack", "AM-II ACK channel {channel} sequence {sequence}", back=True, handles=(("channel", "channel"),)),
    NACK: Kind(
        "nack",
        "AM-II NACK channel {channel} sequence {sequence}, {reason}",
        back=True,
        handles=(("channel", "channel"),),
    ),
}

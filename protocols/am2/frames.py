"""Formats of AM-II's frames, as Scapy layers. The frames are Myrinet packets of one type (`protocols.myrinet`).

The paper names the contents of a packet: "logical channel, sequence number, time stamp", the endpoints and the tag
("Transport protocols"); a NACK echoes the packet's time stamp. Layout and widths are ours, as are the incarnations, the
generation of a channel, and the CRC-32. Numbers are in network byte order. `codec.py` is generated from this module.
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
"""One of the packet types that Myrinet leaves to software (ANSI/VITA 26-1998)."""

MESSAGE: Final = 1
ACK: Final = 2
NACK: Final = 3


class AM2(LengthCheckLayer):
    """The header, 28 bytes. An answer (ACK, NACK) is a header alone; its channel, generation, sequence and stamp are
    those of the packet that it answers."""

    name = "AM-II"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("kind", MESSAGE, {MESSAGE: "MESSAGE", ACK: "ACK", NACK: "NACK"}),
        # Reason of a NACK. Up to NO_MAPPING, reasons are temporary: the packet is resent. The others undo the message.
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
        ShortField("source", 0),  # number of the NIC that sends the frame
        ShortField("destination", 0),  # number of the NIC that receives it
        XIntField("sender", 0),  # incarnation of the source
        XIntField("receiver", 0),  # incarnation of the destination as known to the source; 0: unknown
        ByteField("channel", 0),
        ByteField("generation", 0),  # of the channel: increases when an unanswered packet is given up
        ShortField("sequence", 0),  # of the packet on its channel
        IntField("stamp", 0),  # of this sending of the packet
        ShortField("length", None),  # bytes of payload: arguments, then data
        # CRC-32 as in zlib over the frame from its first byte to the end of the payload, without this field.
        XIntField("check", None),
    ]

    def mysummary(self) -> str:
        return str(self.sprintf("AM-II %AM2.kind% channel %AM2.channel% sequence %AM2.sequence%"))


class AM2Message(Packet):
    """A message's header, 28 bytes. The arguments, of four bytes each, and the data follow."""

    name = "AM-II message"
    fields_desc = [  # noqa: RUF012
        # SHORT: arguments only. MEDIUM: data for the handler. BULK: data for the destination's segment. GONE: the
        # endpoint `origin` no longer exists. LOST_REPLY: the reply of `origin` to a request was given up or refused.
        # KEEPALIVE: only its acknowledgement matters.
        ByteEnumField("form", 0, {0: "SHORT", 1: "MEDIUM", 2: "BULK", 3: "GONE", 4: "LOST_REPLY", 5: "KEEPALIVE"}),
        FlagsField("flags", 0, 8, ["REPLY"]),
        ByteField("handler", 0),
        ByteField("arguments", 0),  # number of arguments
        ShortField("origin", 0),  # number of the sending endpoint in the source NIC
        ShortField("endpoint", 0),  # number of the receiving endpoint in the destination NIC
        XLongField("tag", 0),
        IntField("message", 0),  # number of the request, counted per origin; of a reply: the request's
        IntField("offset", 0),  # BULK: offset of this packet's data in the segment
        IntField("total", 0),  # BULK: bytes of data of the whole message
    ]


bind_layers(Myrinet, AM2, type=PACKET_TYPE)
bind_layers(AM2, AM2Message, kind=MESSAGE)

# Input of the code generator (`protocols.core.codegen`).
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {
    "answer": (Ether, Myrinet, AM2),
    "message": (Ether, Myrinet, AM2, AM2Message),
}
LENGTH: Final = "length"
CHECK: Final = "check"
FLOW: Final = ("kind", "channel")

# Summaries of packets. An answer refers to the unanswered packet of its channel.
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

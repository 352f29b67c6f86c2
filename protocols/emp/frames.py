"""EMP's frames: the definition of the format on the wire, as Scapy layers.

Section 4.1 of the paper: "The first frame of the message contains a message header which embeds frame header. All frames
contain a frame header." The paper does not list the fields; they follow from its description of the firmware, and their
layout is ours. Numbers are in network byte order. `codec.py` is generated from this module.

An enumeration lists every value that its field may have; an enumeration with a single value is a constant of the format.
"""

from __future__ import annotations

from typing import Final

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FlagsField,
    IntField,
    ShortEnumField,
    ShortField,
    XIntField,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.frame_kinds import Kind
from protocols.core.frames import LengthCheckLayer

ETHERTYPE: Final = 0x88B5
"""IEEE Std 802 - Local Experimental Ethertype 1."""

MESSAGE: Final = 1
DATA: Final = 2
ACK: Final = 3


class EMP(LengthCheckLayer):
    """The frame header, 28 bytes. An acknowledgement is a frame header alone, derived from that of the last frame
    received."""

    name = "EMP"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("version", 1, {1: "EMP"}),
        # MESSAGE: the first frame of a message. DATA: a later frame. ACK: an acknowledgement.
        ByteEnumField("type", DATA, {MESSAGE: "MESSAGE", DATA: "DATA", ACK: "ACK"}),
        FlagsField("flags", 0, 8, ["LAST"]),  # LAST: the last frame of the message
        ByteField("unit", 3),  # frames per collection of this message
        XIntField("sender", 0),  # incarnation of the NIC that sends the message
        XIntField("receiver", 0),  # incarnation of the NIC that receives the message, known or presumed; 0: unknown
        IntField("message", 0),  # message id, counted per pair of hosts
        IntField("frame", 0),  # number of the frame in the message, from 0
        ShortField("length", None),  # bytes of payload of this frame
        # Of an acknowledgement. RESTARTED: the frame was meant for an earlier incarnation of the receiver.
        ShortEnumField("status", 0, {0: "OK", 1: "RESTARTED"}),
        # CRC-32 as in zlib over the frame from its first byte to the end of the payload, without this field.
        # It stands in for Ethernet's frame check sequence, which a veth does not have.
        XIntField("check", None),
    ]

    def mysummary(self) -> str:
        return str(self.sprintf("EMP %EMP.type% message %EMP.message% frame %EMP.frame%"))


class EMPMessage(Packet):
    """The message header, 16 bytes, after the frame header of a message's first frame."""

    name = "EMP message"
    fields_desc = [  # noqa: RUF012
        ShortField("source", 0),  # node number
        ShortField("destination", 0),  # node number
        XIntField("tag", 0),
        IntField("total", 0),  # bytes of the whole message
        IntField("oldest", 0),  # id of the sender's oldest message to this peer that is not completely acknowledged
    ]


bind_layers(Ether, EMP, type=ETHERTYPE)
bind_layers(EMP, EMPMessage, type=MESSAGE)

# Input of the code generator. STACKS: the layers of each frame, by its name. LENGTH, CHECK: the fields that the codec fills
# in. PREFIX: the last field of the prefix that all frames of one kind from one NIC to another have in common. FLOW: the
# fields that distinguish flows.
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {"frame": (Ether, EMP), "message": (Ether, EMP, EMPMessage)}
LENGTH: Final = "length"
CHECK: Final = "check"
PREFIX: Final = "receiver"
FLOW: Final = ("type",)

# Summaries of frames, and the fields that identify their message. Message ids are counted per pair of NICs, and start
# over after a restart.
KIND: Final = "type"
KINDS: Final = {
    MESSAGE: Kind(
        "data",
        "EMP MESSAGE[ {flags}] message {message} frame {frame}, node {source} to {destination}, tag {tag:#x}, "
        "{length} of {total} bytes",
        message=("message",),
        within=("sender",),
        part="frame",
        total="total",
    ),
    DATA: Kind(
        "data",
        "EMP DATA[ {flags}] message {message} frame {frame}, {length} bytes",
        message=("message",),
        within=("sender",),
        part="frame",
    ),
    ACK: Kind(
        "ack",
        "EMP ACK[ {flags}] message {message} frame {frame}[, {status}]",
        message=("message",),
        within=("sender",),
        part="frame",
        back=True,
    ),
}

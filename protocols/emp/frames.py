"""EMP's frames: the one definition of the format on the wire, as Scapy layers.

Section 4.1 of the paper: "The first frame of the message contains a message header which embeds frame header. All frames
contain a frame header." Which fields those have is implied by what the firmware does; their layout is ours. Numbers are
in network byte order. `codec.py` beside this file is made from it.

An enumeration lists every value that its field may have; one with a single value is a constant of the format.
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
    """The frame header, 28 bytes. An acknowledgement is one, nearly that of the last frame received."""

    name = "EMP"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("version", 1, {1: "EMP"}),
        # The first frame of a message, another one, an acknowledgement.
        ByteEnumField("type", DATA, {MESSAGE: "MESSAGE", DATA: "DATA", ACK: "ACK"}),
        FlagsField("flags", 0, 8, ["LAST"]),  # the last frame of the message
        ByteField("unit", 3),  # frames per collection of this message
        XIntField("sender", 0),  # incarnation of the NIC that sends the message
        XIntField("receiver", 0),  # incarnation of the NIC that receives it, as far as known or presumed; 0: unknown
        IntField("message", 0),  # message id, counted per pair of hosts
        IntField("frame", 0),  # number of the frame in the message, from 0
        ShortField("length", None),  # bytes of payload of this frame
        # What an acknowledgement says. RESTARTED: the frame was meant for an earlier incarnation of the receiver.
        ShortEnumField("status", 0, {0: "OK", 1: "RESTARTED"}),
        # CRC-32 as in zlib over the frame from its first byte to the end of the payload, without this field.
        # It stands in for Ethernet's frame check sequence, which a veth does not have.
        XIntField("check", None),
    ]

    def mysummary(self) -> str:
        return str(self.sprintf("EMP %EMP.type% message %EMP.message% frame %EMP.frame%"))


class EMPMessage(Packet):
    """The message header, 16 bytes, behind the first frame's header."""

    name = "EMP message"
    fields_desc = [  # noqa: RUF012
        ShortField("source", 0),  # node number
        ShortField("destination", 0),  # node number
        XIntField("tag", 0),
        IntField("total", 0),  # bytes of the whole message
        IntField("oldest", 0),  # the sender's oldest message id to this peer that is not yet acknowledged
    ]


bind_layers(Ether, EMP, type=ETHERTYPE)
bind_layers(EMP, EMPMessage, type=MESSAGE)

# What the codec is made for: frames by name, from Ethernet on; the fields that it fills in itself; the last of those at a
# frame's beginning that one of the same kind between the same NICs has, too; and the fields that distinguish flows.
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {"frame": (Ether, EMP), "message": (Ether, EMP, EMPMessage)}
LENGTH: Final = "length"
CHECK: Final = "check"
PREFIX: Final = "receiver"
FLOW: Final = ("type",)

# For people: a frame in words, and what belongs to one message. An id is counted per pair of NICs, anew after a restart.
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

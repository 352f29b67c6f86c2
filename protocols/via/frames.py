"""VIA's frames: the definition of the wire format, as Scapy layers.

The VIA specification 1.0 leaves the wire format to the provider, and no description of M-VIA's Ethernet header is
public: this layout is ours. A CRC-32 behind the payload replaces Ethernet's frame check sequence, which a veth does not
have. The first five bytes after the EtherType have the form of a protocol identifier of IEEE Std
802, with a locally administered OUI. Numbers are in network byte order. `codec.py` is generated from this file.
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
    XLongField,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.frame_kinds import Kind
from protocols.core.frames import CheckField, LengthTrailerLayer

ETHERTYPE: Final = 0x5649
"""Ours, the letters VI: no EtherType of M-VIA is published."""

SEND: Final = 1
RDMA_WRITE: Final = 2
CONNECT: Final = 3
ACK: Final = 4
ERROR: Final = 5
RDMA_READ: Final = 6
READ_REPLY: Final = 7
TYPES: Final = {
    SEND: "SEND",
    RDMA_WRITE: "RDMA_WRITE",
    CONNECT: "CONNECT",
    ACK: "ACK",
    ERROR: "ERROR",
    RDMA_READ: "RDMA_READ",
    READ_REPLY: "READ_REPLY",
}


class VIA(LengthTrailerLayer):
    """The header of every frame, 49 bytes."""

    name = "VIA"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("oui", 2, {2: "LOCAL"}),  # 02-00-00: locally administered
        ShortEnumField("oui_rest", 0, {0: "LOCAL"}),
        ShortEnumField("protocol", 1, {1: "VIA"}),
        # Data of a Send; data of an RDMA Write; connection frame; acknowledgement; broken connection; RDMA Read
        # request; RDMA Read response.
        ByteEnumField("type", SEND, TYPES),
        # Last frame of the message; the message has immediate data; of an ACK: a later frame arrived first.
        FlagsField("flags", 0, 8, ["LAST", "IMMEDIATE", "MISSING"]),
        XIntField("sender", 0),  # incarnation of the NIC that sends the frame
        XIntField("receiver", 0),  # incarnation of the receiving NIC, known or assumed; 0: unknown
        ShortField("vi", 0),  # the receiver's VI
        XIntField("session", 0),  # number of the connection at the receiver's VI
        ShortField("from_vi", 0),  # the sender's VI
        XIntField("from_session", 0),  # number of the connection at the sender's VI
        IntField("sequence", 0),  # number of the frame in the connection; of an ACK the next expected number
        IntField("message", 0),  # number of the message in the connection; of a READ_REPLY the number of the RDMA Read
        IntField("total", 0),  # bytes of the message; of an ERROR the cause, a bit of the descriptor's status
        IntField("offset", 0),  # of the payload in the message
        XIntField("immediate", 0),
        ShortField("length", None),  # bytes of payload of this frame
        CheckField("check", None),
    ]

    def mysummary(self) -> str:
        return str(self.sprintf("VIA %VIA.type% VI %VIA.vi% frame %VIA.sequence%"))


class VIARemote(Packet):
    """The second header of an RDMA Write, 12 bytes: where the message begins in the target's memory."""

    name = "VIA remote address"
    fields_desc = [  # noqa: RUF012
        XLongField("address", 0),
        IntField("handle", 0),
    ]


class VIARead(Packet):
    """The second header of an RDMA Read, 12 bytes: where the data begins in the target's memory."""

    name = "VIA RDMA read"
    fields_desc = [  # noqa: RUF012
        XLongField("source_address", 0),
        IntField("source_handle", 0),
    ]


class VIAConnection(Packet):
    """The second header of a connection frame, 6 bytes; the payload is the discriminator."""

    name = "VIA connection"
    fields_desc = [  # noqa: RUF012
        ByteEnumField(
            "step",
            1,
            {1: "REQUEST", 2: "PEER_REQUEST", 3: "ACCEPT", 4: "REJECT", 5: "NO_MATCH", 6: "DISCONNECT"},
        ),
        ByteField("reliability", 0),
        IntField("max_transfer", 0),  # maximum bytes of a message
    ]


bind_layers(Ether, VIA, type=ETHERTYPE)
bind_layers(VIA, VIARemote, type=RDMA_WRITE)
bind_layers(VIA, VIAConnection, type=CONNECT)
bind_layers(VIA, VIARead, type=RDMA_READ)

# Input of the code generator: frames by name, as stacks of layers; the computed field; and the fields that identify a
# flow.
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {
    "frame": (Ether, VIA),
    "remote": (Ether, VIA, VIARemote),
    "connection": (Ether, VIA, VIAConnection),
    "read": (Ether, VIA, VIARead),
}
LENGTH: Final = "length"
FLOW: Final = ("type",)

# Summaries of frames, and the fields that identify a message. Message numbers are per VI and connection. Data of a
# READ_REPLY belongs to the message of its RDMA Read, and travels in the opposite direction.
KIND: Final = "type"
_DATA: Final = "VI {vi} frame {sequence}, message {message}, {length} bytes at {offset} of {total}"
_ID: Final = ("from_vi", "message")
_WITHIN: Final = ("sender", "from_session")
_REMOTE: Final = ", to {address:#x} of memory {handle}"
KINDS: Final = {
    SEND: Kind("data", f"VIA SEND[ {{flags}}] {_DATA}", _ID, _WITHIN, "offset", "total"),
    RDMA_WRITE: Kind("data", f"VIA RDMA_WRITE[ {{flags}}] {_DATA}{_REMOTE}", _ID, _WITHIN, "offset", "total"),
    CONNECT: Kind("control", "VIA CONNECT {step}, VI {from_vi} to VI {vi}[, cause {total:#x}]"),
    ACK: Kind("ack", "VIA ACK[ {flags}] VI {vi}, up to frame {sequence}"),
    ERROR: Kind("control", "VIA ERROR VI {vi}, cause {total:#x}"),
    RDMA_READ: Kind(
        "control",
        "VIA RDMA_READ VI {vi} frame {sequence}, message {message}, {total} bytes at {source_address:#x} of memory"
        " {source_handle}",
        _ID,
        _WITHIN,
        total="total",
    ),
    READ_REPLY: Kind(
        "data",
        f"VIA READ_REPLY[ {{flags}}] {_DATA}",
        ("vi", "message"),
        ("receiver", "session"),
        "offset",
        "total",
        back=True,
    ),
}

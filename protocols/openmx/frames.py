"""Open-MX's frames: the definition of the wire format, as Scapy layers.

The layouts, field by field, are those of Open-MX's `common/omx_wire.h`. One difference: Open-MX relies on Ethernet's
frame check sequence, which a veth does not have, so a CRC-32 follows each frame's data here. Abbreviated field names
are spelled out. Numbers are in network byte order. `codec.py` is generated from this file.
"""

from __future__ import annotations

from typing import Final

from scapy.fields import (
    AnyField,
    ByteEnumField,
    ByteField,
    IntEnumField,
    IntField,
    ShortEnumField,
    ShortField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.l2 import Ether
from scapy.packet import bind_layers

from protocols.core.frame_kinds import Kind
from protocols.core.frames import CheckField, SizedLayer, TrailingCheckLayer

ETHERTYPE: Final = 0x86DF

TRUC, CONNECT, TINY, SMALL, MEDIUM, RNDV, PULL, PULL_REPLY, NOTIFY, NACK_LIB, NACK_MCP = range(35, 46)
TYPES: Final = {
    TRUC: "TRUC",
    CONNECT: "CONNECT",
    TINY: "TINY",
    SMALL: "SMALL",
    MEDIUM: "MEDIUM",
    RNDV: "RNDV",
    PULL: "PULL",
    PULL_REPLY: "PULL_REPLY",
    NOTIFY: "NOTIFY",
    NACK_LIB: "NACK_LIB",
    NACK_MCP: "NACK_MCP",
}
_ZERO: Final = {0: "ZERO"}  # value of unused fields
NACKS: Final = {1: "BAD_ENDPOINT", 2: "ENDPOINT_CLOSED", 3: "BAD_SESSION", 4: "BAD_RDMAWIN"}


class OpenMX(TrailingCheckLayer):
    """The beginning of every frame, 3 bytes."""

    name = "Open-MX"
    fields_desc = [  # noqa: RUF012
        XShortField("peer_index", 0),  # the sender's index in the receiver's table of peers: its node's number
        # Acknowledgement; connection; messages up to 32 bytes, 128 bytes, 32 KiB (in fragments) and above; pull
        # request, pull reply, and notice of completion; refusals of a message and of a pull.
        ByteEnumField("type", TINY, TYPES),
        CheckField("check", None),
    ]

    def mysummary(self) -> str:
        return str(self.sprintf("Open-MX %OpenMX.type%"))


# Common fields of messages.
_ENDPOINTS: Final[list[AnyField]] = [
    ByteField("dst_endpoint", 0),
    ByteField("src_endpoint", 0),
    ByteEnumField("src_generation", 0, _ZERO),
]
_MATCH: Final[list[AnyField]] = [
    ShortField("length", None),  # bytes of payload
    ShortEnumField("checksum", 0, _ZERO),  # unused
    XShortField("seqnum", 0),  # session (2 bits), message (14 bits)
    XShortField("ack", 0),  # next expected message
    XLongField("match_info", 0),
    XIntField("session", 0),  # of the receiver's endpoint
]


class Tiny(SizedLayer):
    """A message of at most 32 bytes: 23 bytes after the type."""

    name = "Open-MX tiny"
    payload_size = "length"
    fields_desc = [*_ENDPOINTS, *_MATCH]  # noqa: RUF012


class Small(SizedLayer):
    """A message of at most 128 bytes: 23 bytes after the type."""

    name = "Open-MX small"
    payload_size = "length"
    fields_desc = [*_ENDPOINTS, *_MATCH]  # noqa: RUF012


class Medium(SizedLayer):
    """A fragment of a message of at most 32 KiB: 31 bytes after the type."""

    name = "Open-MX medium"
    payload_size = "frag_length"
    fields_desc = [  # noqa: RUF012
        *_ENDPOINTS,
        IntField("msg_length", 0),  # bytes of the message
        XShortField("seqnum", 0),
        XShortField("ack", 0),
        XLongField("match_info", 0),
        XIntField("session", 0),
        ShortField("frag_length", None),  # bytes of payload
        ByteField("frag_seqnum", 0),  # index of the fragment
        ByteEnumField("pad", 0, _ZERO),
        ShortEnumField("checksum", 0, _ZERO),  # unused
        ShortEnumField("rest", 0, _ZERO),
    ]


class Rendezvous(SizedLayer):
    """Announcement of a message that the receiver pulls, above 32 KiB or synchronous: 31 bytes after the type."""

    name = "Open-MX rendezvous"
    payload_size = "length"
    fields_desc = [  # noqa: RUF012
        *_ENDPOINTS,
        *_MATCH,
        IntField("msg_length", 0),
        ByteField("rdma_id", 0),  # number of the sender's region
        ByteField("rdma_seqnum", 0),  # generation of the id
        ShortField("rdma_offset", 0),
    ]


class Pull(SizedLayer):
    """The receiver requests a block of a region: 43 bytes after the type."""

    name = "Open-MX pull"
    fields_desc = [  # noqa: RUF012
        *_ENDPOINTS,
        XIntField("session", 0),
        IntField("total_length", 0),  # bytes of the message
        IntField("rdma_id", 0),
        ByteField("rdma_seqnum", 0),
        ByteEnumField("pad", 0, _ZERO),
        ShortEnumField("rest", 0, _ZERO),
        IntField("rdma_offset", 0),  # start of the message in the region
        XIntField("pull_handle", 0),
        XIntField("magic", 0),  # the requesting endpoint XOR PULL_MAGIC
        IntField("first_frame_offset", 0),  # bytes of the first frame to skip
        IntField("block_length", 0),  # bytes requested
        IntField("frame_index", 0),  # index of the block's first frame
    ]


class PullReply(SizedLayer):
    """Data of a block: 15 bytes after the type."""

    name = "Open-MX pull reply"
    payload_size = "frame_length"
    fields_desc = [  # noqa: RUF012
        ByteField("frame_seqnum", 0),  # the frame's index, modulo 256
        ShortField("frame_length", None),  # bytes of payload
        IntField("msg_offset", 0),  # offset of the payload in the message
        XIntField("pull_handle", 0),
        XIntField("magic", 0),
    ]


class Notify(SizedLayer):
    """Notice that an announced message was pulled: 23 bytes after the type."""

    name = "Open-MX notify"
    fields_desc = [  # noqa: RUF012
        *_ENDPOINTS,
        XIntField("session", 0),
        IntField("total_length", 0),
        ByteField("rdma_id", 0),
        ByteField("rdma_seqnum", 0),
        ShortEnumField("pad", 0, _ZERO),
        ShortEnumField("rest", 0, _ZERO),
        XShortField("seqnum", 0),
        XShortField("ack", 0),
        ShortEnumField("end", 0, _ZERO),
    ]


class Truc(SizedLayer):
    """An acknowledgement between libraries, opaque to the driver: 27 bytes after the type."""

    name = "Open-MX acknowledgement"
    fields_desc = [  # noqa: RUF012
        *_ENDPOINTS,
        ByteEnumField("data_length", 20, {20: "ACK"}),
        ByteEnumField("pad", 0, _ZERO),
        ShortEnumField("rest", 0, _ZERO),
        XIntField("session", 0),
        ByteEnumField("data_type", 0x55, {0x55: "LIBACK"}),
        ByteEnumField("data_pad", 0, _ZERO),
        XShortField("ack", 0),
        XIntField("acked_session", 0),  # session of the acknowledged messages: that of this frame's receiver
        IntField("acknum", 0),  # number of this acknowledgement
        ShortField("send_seqnum", 0),  # next message of the sender
        ByteField("resent", 0),
        ByteEnumField("end", 0, _ZERO),
    ]


class Connect(SizedLayer):
    """Connection request between endpoints, or its answer: 31 bytes after the type."""

    name = "Open-MX connect"
    fields_desc = [  # noqa: RUF012
        *_ENDPOINTS,
        ByteEnumField("connect_length", 16, {16: "CONNECT"}),
        ByteEnumField("pad", 0, _ZERO),
        ShortEnumField("rest", 0, _ZERO),
        ShortEnumField("unused", 0, _ZERO),  # Open-MX's lib_seqnum
        ShortEnumField("unused_index", 0, _ZERO),
        IntEnumField("empty", 0, _ZERO),
        XIntField("src_session", 0),  # of the requesting endpoint
        XIntField("word", 0),  # request: the key of the application; answer: the session of the answering endpoint
        XShortField("recv_seqnum", 0),  # first sequence number that the sender of this frame expects
        ByteField("is_reply", 0),
        ByteField("connect_seqnum", 0),
        ByteField("status", 0),  # of an answer: 0, or BAD_KEY
        ByteEnumField("data_pad", 0, _ZERO),
        ShortEnumField("end", 0, _ZERO),
    ]


class NackLib(SizedLayer):
    """The driver refuses a message: 15 bytes after the type."""

    name = "Open-MX nack to the library"
    fields_desc = [  # noqa: RUF012
        ByteField("src_endpoint", 0),  # destination of the message
        ByteEnumField("src_generation", 0, _ZERO),
        ByteEnumField("nack_type", 1, NACKS),
        IntEnumField("pad", 0, _ZERO),
        ByteEnumField("rest", 0, _ZERO),
        ByteField("dst_endpoint", 0),  # source of the message
        XShortField("dst_peer_index", 0),
        XShortField("seqnum", 0),  # of the message
        ShortEnumField("end", 0, _ZERO),
    ]


class NackMcp(SizedLayer):
    """The driver refuses a pull: 15 bytes after the type."""

    name = "Open-MX nack to the driver"
    fields_desc = [  # noqa: RUF012
        ByteField("src_endpoint", 0),
        ByteEnumField("src_generation", 0, _ZERO),
        ByteEnumField("nack_type", 4, NACKS),
        IntEnumField("pad", 0, _ZERO),
        XIntField("pull_handle", 0),
        XIntField("magic", 0),
    ]


_LAYERS: Final = {
    TRUC: Truc, CONNECT: Connect, TINY: Tiny, SMALL: Small, MEDIUM: Medium, RNDV: Rendezvous, PULL: Pull,
    PULL_REPLY: PullReply, NOTIFY: Notify, NACK_LIB: NackLib, NACK_MCP: NackMcp,
}  # fmt: skip

bind_layers(Ether, OpenMX, type=ETHERTYPE)
for _type, _layer in _LAYERS.items():
    bind_layers(OpenMX, _layer, type=_type)

# Input of the code generator: frames by name, as stacks of layers; the computed fields; and the fields that identify a
# flow.
STACKS: Final = {TYPES[type_].lower(): (Ether, OpenMX, layer) for type_, layer in _LAYERS.items()}
LENGTH: Final = ("length", "frag_length", "frame_length")
FLOW: Final = ("type",)

# Summaries of frames.
KIND: Final = "type"


def _message(layer: str, words: str) -> Kind:
    """Return the summary of a numbered message between two endpoints."""
    ends = f"{{{layer}.src_endpoint}} to {{{layer}.dst_endpoint}}"
    return Kind(
        "data",
        f"Open-MX {words.format(layer=layer)} from endpoint {ends}, message {{{layer}.seqnum:#x}}",
        (f"{layer}.src_endpoint", f"{layer}.seqnum"),
        (f"{layer}.session",),
    )


KINDS: Final = {
    TINY: _message("tiny", "TINY, {{{layer}.length}} bytes"),
    SMALL: _message("small", "SMALL, {{{layer}.length}} bytes"),
    MEDIUM: _message("medium", "MEDIUM fragment {{frag_seqnum}}, {{frag_length}} bytes of {{{layer}.msg_length}}"),
    RNDV: _message("rendezvous", "RNDV, {{{layer}.msg_length}} bytes, region {{{layer}.rdma_id}}"),
    PULL: Kind("control", "Open-MX PULL {pull.pull_handle:#x}, {block_length} bytes from frame {frame_index}"),
    PULL_REPLY: Kind(
        "data",
        "Open-MX PULL_REPLY {pullreply.pull_handle:#x}, {frame_length} bytes at {msg_offset}",
        ("pullreply.pull_handle",),
        part="msg_offset",
    ),
    NOTIFY: Kind(
        "control",
        "Open-MX NOTIFY from endpoint {notify.src_endpoint} to {notify.dst_endpoint}, {notify.total_length} bytes",
    ),
    TRUC: Kind("ack", "Open-MX ACK from endpoint {truc.src_endpoint} to {truc.dst_endpoint}, before {truc.ack:#x}"),
    CONNECT: Kind(
        "control",
        "Open-MX CONNECT[ reply {is_reply}] from endpoint {connect.src_endpoint}"
        " to {connect.dst_endpoint}[, status {status}]",
    ),
    NACK_LIB: Kind("nack", "Open-MX NACK_LIB {nacklib.nack_type}, message {nacklib.seqnum:#x}"),
    NACK_MCP: Kind("nack", "Open-MX NACK_MCP {nackmcp.nack_type}, pull {nackmcp.pull_handle:#x}"),
}

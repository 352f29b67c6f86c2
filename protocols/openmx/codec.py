"""The frames of protocols.openmx, packed and unpacked. Generated: change frames.py, then

    python -m protocols.core.codegen protocols.openmx

Frames are complete, from the destination address on. `pack_*` takes every field that is not fixed and returns a
frame; `unpack_*` returns the same fields and the payload, a slice of the frame, or raises MalformedError. MAC addresses
are 6 bytes. A number that is too large for its field raises struct.error; in a bit field only its low bits count.
"""

from __future__ import annotations

import struct
from typing import Final

from protocols.core.checksum import crc32
from protocols.core.firmware import Buffer
from protocols.core.frame_kinds import Kind
from protocols.core.malformed import MalformedError

ETHERTYPE: Final = 0x86DF
TYPE_TRUC: Final = 35
TYPE_CONNECT: Final = 36
TYPE_TINY: Final = 37
TYPE_SMALL: Final = 38
TYPE_MEDIUM: Final = 39
TYPE_RNDV: Final = 40
TYPE_PULL: Final = 41
TYPE_PULL_REPLY: Final = 42
TYPE_NOTIFY: Final = 43
TYPE_NACK_LIB: Final = 44
TYPE_NACK_MCP: Final = 45
SRC_GENERATION: Final = 0
DATA_LENGTH: Final = 20
PAD: Final = 0
REST: Final = 0
DATA_TYPE: Final = 85
DATA_PAD: Final = 0
END: Final = 0
CONNECT_LENGTH: Final = 16
UNUSED: Final = 0
UNUSED_INDEX: Final = 0
EMPTY: Final = 0
CHECKSUM: Final = 0
NACK_TYPE_BAD_ENDPOINT: Final = 1
NACK_TYPE_ENDPOINT_CLOSED: Final = 2
NACK_TYPE_BAD_SESSION: Final = 3
NACK_TYPE_BAD_RDMAWIN: Final = 4

TRUC: Final = struct.Struct("!6s6sHHBBBBBBHIBBHIIHBB")
"""Ether / OpenMX / Truc."""
CONNECT: Final = struct.Struct("!6s6sHHBBBBBBHHHIIIHBBBBH")
"""Ether / OpenMX / Connect."""
TINY: Final = struct.Struct("!6s6sHHBBBBHHHHQI")
"""Ether / OpenMX / Tiny."""
SMALL: Final = struct.Struct("!6s6sHHBBBBHHHHQI")
"""Ether / OpenMX / Small."""
MEDIUM: Final = struct.Struct("!6s6sHHBBBBIHHQIHBBHH")
"""Ether / OpenMX / Medium."""
RNDV: Final = struct.Struct("!6s6sHHBBBBHHHHQIIBBH")
"""Ether / OpenMX / Rendezvous."""
PULL: Final = struct.Struct("!6s6sHHBBBBIIIBBHIIIIII")
"""Ether / OpenMX / Pull."""
PULL_REPLY: Final = struct.Struct("!6s6sHHBBHIII")
"""Ether / OpenMX / PullReply."""
NOTIFY: Final = struct.Struct("!6s6sHHBBBBIIBBHHHHH")
"""Ether / OpenMX / Notify."""
NACK_LIB: Final = struct.Struct("!6s6sHHBBBBIBBHHH")
"""Ether / OpenMX / NackLib."""
NACK_MCP: Final = struct.Struct("!6s6sHHBBBBIII")
"""Ether / OpenMX / NackMcp."""

TRUC_SIZE: Final = 44
CONNECT_SIZE: Final = 48
TINY_SIZE: Final = 40
SMALL_SIZE: Final = 40
MEDIUM_SIZE: Final = 48
RNDV_SIZE: Final = 48
PULL_SIZE: Final = 60
PULL_REPLY_SIZE: Final = 32
NOTIFY_SIZE: Final = 40
NACK_LIB_SIZE: Final = 32
NACK_MCP_SIZE: Final = 32

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "peer_index": (0, 2),
    "type": (2, 1),
    "truc.dst_endpoint": (3, 1, 0, (("type", 35),)),
    "truc.src_endpoint": (4, 1, 0, (("type", 35),)),
    "truc.src_generation": (5, 1, 0, (("type", 35),)),
    "data_length": (6, 1, 0, (("type", 35),)),
    "truc.pad": (7, 1, 0, (("type", 35),)),
    "truc.rest": (8, 2, 0, (("type", 35),)),
    "truc.session": (10, 4, 0, (("type", 35),)),
    "data_type": (14, 1, 0, (("type", 35),)),
    "truc.data_pad": (15, 1, 0, (("type", 35),)),
    "truc.ack": (16, 2, 0, (("type", 35),)),
    "acked_session": (18, 4, 0, (("type", 35),)),
    "acknum": (22, 4, 0, (("type", 35),)),
    "send_seqnum": (26, 2, 0, (("type", 35),)),
    "resent": (28, 1, 0, (("type", 35),)),
    "truc.end": (29, 1, 0, (("type", 35),)),
    "connect.dst_endpoint": (3, 1, 0, (("type", 36),)),
    "connect.src_endpoint": (4, 1, 0, (("type", 36),)),
    "connect.src_generation": (5, 1, 0, (("type", 36),)),
    "connect_length": (6, 1, 0, (("type", 36),)),
    "connect.pad": (7, 1, 0, (("type", 36),)),
    "connect.rest": (8, 2, 0, (("type", 36),)),
    "unused": (10, 2, 0, (("type", 36),)),
    "unused_index": (12, 2, 0, (("type", 36),)),
    "empty": (14, 4, 0, (("type", 36),)),
    "src_session": (18, 4, 0, (("type", 36),)),
    "word": (22, 4, 0, (("type", 36),)),
    "recv_seqnum": (26, 2, 0, (("type", 36),)),
    "is_reply": (28, 1, 0, (("type", 36),)),
    "connect_seqnum": (29, 1, 0, (("type", 36),)),
    "status": (30, 1, 0, (("type", 36),)),
    "connect.data_pad": (31, 1, 0, (("type", 36),)),
    "connect.end": (32, 2, 0, (("type", 36),)),
    "tiny.dst_endpoint": (3, 1, 0, (("type", 37),)),
    "tiny.src_endpoint": (4, 1, 0, (("type", 37),)),
    "tiny.src_generation": (5, 1, 0, (("type", 37),)),
    "tiny.length": (6, 2, 0, (("type", 37),)),
    "tiny.checksum": (8, 2, 0, (("type", 37),)),
    "tiny.seqnum": (10, 2, 0, (("type", 37),)),
    "tiny.ack": (12, 2, 0, (("type", 37),)),
    "tiny.match_info": (14, 8, 0, (("type", 37),)),
    "tiny.session": (22, 4, 0, (("type", 37),)),
    "small.dst_endpoint": (3, 1, 0, (("type", 38),)),
    "small.src_endpoint": (4, 1, 0, (("type", 38),)),
    "small.src_generation": (5, 1, 0, (("type", 38),)),
    "small.length": (6, 2, 0, (("type", 38),)),
    "small.checksum": (8, 2, 0, (("type", 38),)),
    "small.seqnum": (10, 2, 0, (("type", 38),)),
    "small.ack": (12, 2, 0, (("type", 38),)),
    "small.match_info": (14, 8, 0, (("type", 38),)),
    "small.session": (22, 4, 0, (("type", 38),)),
    "medium.dst_endpoint": (3, 1, 0, (("type", 39),)),
    "medium.src_endpoint": (4, 1, 0, (("type", 39),)),
    "medium.src_generation": (5, 1, 0, (("type", 39),)),
    "medium.msg_length": (6, 4, 0, (("type", 39),)),
    "medium.seqnum": (10, 2, 0, (("type", 39),)),
    "medium.ack": (12, 2, 0, (("type", 39),)),
    "medium.match_info": (14, 8, 0, (("type", 39),)),
    "medium.session": (22, 4, 0, (("type", 39),)),
    "frag_length": (26, 2, 0, (("type", 39),)),
    "frag_seqnum": (28, 1, 0, (("type", 39),)),
    "medium.pad": (29, 1, 0, (("type", 39),)),
    "medium.checksum": (30, 2, 0, (("type", 39),)),
    "medium.rest": (32, 2, 0, (("type", 39),)),
    "rendezvous.dst_endpoint": (3, 1, 0, (("type", 40),)),
    "rendezvous.src_endpoint": (4, 1, 0, (("type", 40),)),
    "rendezvous.src_generation": (5, 1, 0, (("type", 40),)),
    "rendezvous.length": (6, 2, 0, (("type", 40),)),
    "rendezvous.checksum": (8, 2, 0, (("type", 40),)),
    "rendezvous.seqnum": (10, 2, 0, (("type", 40),)),
    "rendezvous.ack": (12, 2, 0, (("type", 40),)),
    "rendezvous.match_info": (14, 8, 0, (("type", 40),)),
    "rendezvous.session": (22, 4, 0, (("type", 40),)),
    "rendezvous.msg_length": (26, 4, 0, (("type", 40),)),
    "rendezvous.rdma_id": (30, 1, 0, (("type", 40),)),
    "rendezvous.rdma_seqnum": (31, 1, 0, (("type", 40),)),
    "rendezvous.rdma_offset": (32, 2, 0, (("type", 40),)),
    "pull.dst_endpoint": (3, 1, 0, (("type", 41),)),
    "pull.src_endpoint": (4, 1, 0, (("type", 41),)),
    "pull.src_generation": (5, 1, 0, (("type", 41),)),
    "pull.session": (6, 4, 0, (("type", 41),)),
    "pull.total_length": (10, 4, 0, (("type", 41),)),
    "pull.rdma_id": (14, 4, 0, (("type", 41),)),
    "pull.rdma_seqnum": (18, 1, 0, (("type", 41),)),
    "pull.pad": (19, 1, 0, (("type", 41),)),
    "pull.rest": (20, 2, 0, (("type", 41),)),
    "pull.rdma_offset": (22, 4, 0, (("type", 41),)),
    "pull.pull_handle": (26, 4, 0, (("type", 41),)),
    "pull.magic": (30, 4, 0, (("type", 41),)),
    "first_frame_offset": (34, 4, 0, (("type", 41),)),
    "block_length": (38, 4, 0, (("type", 41),)),
    "frame_index": (42, 4, 0, (("type", 41),)),
    "frame_seqnum": (3, 1, 0, (("type", 42),)),
    "frame_length": (4, 2, 0, (("type", 42),)),
    "msg_offset": (6, 4, 0, (("type", 42),)),
    "pullreply.pull_handle": (10, 4, 0, (("type", 42),)),
    "pullreply.magic": (14, 4, 0, (("type", 42),)),
    "notify.dst_endpoint": (3, 1, 0, (("type", 43),)),
    "notify.src_endpoint": (4, 1, 0, (("type", 43),)),
    "notify.src_generation": (5, 1, 0, (("type", 43),)),
    "notify.session": (6, 4, 0, (("type", 43),)),
    "notify.total_length": (10, 4, 0, (("type", 43),)),
    "notify.rdma_id": (14, 1, 0, (("type", 43),)),
    "notify.rdma_seqnum": (15, 1, 0, (("type", 43),)),
    "notify.pad": (16, 2, 0, (("type", 43),)),
    "notify.rest": (18, 2, 0, (("type", 43),)),
    "notify.seqnum": (20, 2, 0, (("type", 43),)),
    "notify.ack": (22, 2, 0, (("type", 43),)),
    "notify.end": (24, 2, 0, (("type", 43),)),
    "nacklib.src_endpoint": (3, 1, 0, (("type", 44),)),
    "nacklib.src_generation": (4, 1, 0, (("type", 44),)),
    "nacklib.nack_type": (5, 1, 0, (("type", 44),)),
    "nacklib.pad": (6, 4, 0, (("type", 44),)),
    "nacklib.rest": (10, 1, 0, (("type", 44),)),
    "nacklib.dst_endpoint": (11, 1, 0, (("type", 44),)),
    "dst_peer_index": (12, 2, 0, (("type", 44),)),
    "nacklib.seqnum": (14, 2, 0, (("type", 44),)),
    "nacklib.end": (16, 2, 0, (("type", 44),)),
    "nackmcp.src_endpoint": (3, 1, 0, (("type", 45),)),
    "nackmcp.src_generation": (4, 1, 0, (("type", 45),)),
    "nackmcp.nack_type": (5, 1, 0, (("type", 45),)),
    "nackmcp.pad": (6, 4, 0, (("type", 45),)),
    "nackmcp.pull_handle": (10, 4, 0, (("type", 45),)),
    "nackmcp.magic": (14, 4, 0, (("type", 45),)),
}
"""For rules: offset after Ethernet, width, mask, and required values of other fields."""

FLOW: Final = ("type",)
"""The fields that identify a flow."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "type": {
        35: "TRUC",
        36: "CONNECT",
        37: "TINY",
        38: "SMALL",
        39: "MEDIUM",
        40: "RNDV",
        41: "PULL",
        42: "PULL_REPLY",
        43: "NOTIFY",
        44: "NACK_LIB",
        45: "NACK_MCP",
    },
    "nacklib.nack_type": {1: "BAD_ENDPOINT", 2: "ENDPOINT_CLOSED", 3: "BAD_SESSION", 4: "BAD_RDMAWIN"},
    "nackmcp.nack_type": {1: "BAD_ENDPOINT", 2: "ENDPOINT_CLOSED", 3: "BAD_SESSION", 4: "BAD_RDMAWIN"},
}
"""Names of field values."""

KIND: Final = "type"
KINDS: Final[dict[int, Kind]] = {
    TYPE_TINY: Kind(
        "data",
        "Open-MX TINY, {tiny.length} bytes from endpoint {tiny.src_endpoint} to "
        "{tiny.dst_endpoint}, message {tiny.seqnum:#x}",
        message=("tiny.src_endpoint", "tiny.seqnum"),
        within=("tiny.session",),
    ),
    TYPE_SMALL: Kind(
        "data",
        "Open-MX SMALL, {small.length} bytes from endpoint {small.src_endpoint} to "
        "{small.dst_endpoint}, message {small.seqnum:#x}",
        message=("small.src_endpoint", "small.seqnum"),
        within=("small.session",),
    ),
    TYPE_MEDIUM: Kind(
        "data",
        "Open-MX MEDIUM fragment {frag_seqnum}, {frag_length} bytes of {medium.msg_length} from "
        "endpoint {medium.src_endpoint} to {medium.dst_endpoint}, message {medium.seqnum:#x}",
        message=("medium.src_endpoint", "medium.seqnum"),
        within=("medium.session",),
    ),
    TYPE_RNDV: Kind(
        "data",
        "Open-MX RNDV, {rendezvous.msg_length} bytes, region {rendezvous.rdma_id} from endpoint "
        "{rendezvous.src_endpoint} to {rendezvous.dst_endpoint}, message {rendezvous.seqnum:#x}",
        message=("rendezvous.src_endpoint", "rendezvous.seqnum"),
        within=("rendezvous.session",),
    ),
    TYPE_PULL: Kind("control", "Open-MX PULL {pull.pull_handle:#x}, {block_length} bytes from frame {frame_index}"),
    TYPE_PULL_REPLY: Kind(
        "data",
        "Open-MX PULL_REPLY {pullreply.pull_handle:#x}, {frame_length} bytes at {msg_offset}",
        message=("pullreply.pull_handle",),
        part="msg_offset",
    ),
    TYPE_NOTIFY: Kind(
        "control",
        "Open-MX NOTIFY from endpoint {notify.src_endpoint} to {notify.dst_endpoint}, {notify.total_length} bytes",
    ),
    TYPE_TRUC: Kind(
        "ack", "Open-MX ACK from endpoint {truc.src_endpoint} to {truc.dst_endpoint}, before {truc.ack:#x}"
    ),
    TYPE_CONNECT: Kind(
        "control",
        "Open-MX CONNECT[ reply {is_reply}] from endpoint {connect.src_endpoint} to "
        "{connect.dst_endpoint}[, status {status}]",
    ),
    TYPE_NACK_LIB: Kind("nack", "Open-MX NACK_LIB {nacklib.nack_type}, message {nacklib.seqnum:#x}"),
    TYPE_NACK_MCP: Kind("nack", "Open-MX NACK_MCP {nackmcp.nack_type}, pull {nackmcp.pull_handle:#x}"),
}
"""Formats of the summaries of frames, by the values of KIND."""

_pack_truc: Final = struct.Struct("!6s6sHHBBBBBBHIBBHIIHBB").pack
_unpack_truc: Final = TRUC.unpack_from
_pack_connect: Final = struct.Struct("!6s6sHHBBBBBBHHHIIIHBBBBH").pack
_unpack_connect: Final = CONNECT.unpack_from
_pack_tiny: Final = struct.Struct("!6s6sHHBBBBHHHHQI").pack
_unpack_tiny: Final = TINY.unpack_from
_pack_small: Final = struct.Struct("!6s6sHHBBBBHHHHQI").pack
_unpack_small: Final = SMALL.unpack_from
_pack_medium: Final = struct.Struct("!6s6sHHBBBBIHHQIHBBHH").pack
_unpack_medium: Final = MEDIUM.unpack_from
_pack_rndv: Final = struct.Struct("!6s6sHHBBBBHHHHQIIBBH").pack
_unpack_rndv: Final = RNDV.unpack_from
_pack_pull: Final = struct.Struct("!6s6sHHBBBBIIIBBHIIIIII").pack
_unpack_pull: Final = PULL.unpack_from
_pack_pull_reply: Final = struct.Struct("!6s6sHHBBHIII").pack
_unpack_pull_reply: Final = PULL_REPLY.unpack_from
_pack_notify: Final = struct.Struct("!6s6sHHBBBBIIBBHHHHH").pack
_unpack_notify: Final = NOTIFY.unpack_from
_pack_nack_lib: Final = struct.Struct("!6s6sHHBBBBIBBHHH").pack
_unpack_nack_lib: Final = NACK_LIB.unpack_from
_pack_nack_mcp: Final = struct.Struct("!6s6sHHBBBBIII").pack
_unpack_nack_mcp: Final = NACK_MCP.unpack_from
_pack_check: Final = struct.Struct("!I").pack


def type_of(raw: Buffer) -> int:
    """Return the type of any of the frames; it selects the `unpack_*`."""
    if len(raw) < 17:
        raise MalformedError("short")
    return raw[16]


def pack_truc(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    session: int,
    ack: int,
    acked_session: int,
    acknum: int,
    send_seqnum: int,
    resent: int,
) -> bytes:
    """Ether / OpenMX / Truc."""
    frame = _pack_truc(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_TRUC,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        DATA_LENGTH,
        PAD,
        REST,
        session,
        DATA_TYPE,
        DATA_PAD,
        ack,
        acked_session,
        acknum,
        send_seqnum,
        resent,
        END,
    )
    return frame + _pack_check(crc32(frame))


def unpack_truc(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Truc: dst, src, peer_index, dst_endpoint, src_endpoint, session, ack, acked_session,
    acknum, send_seqnum, resent, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            data_length,
            pad,
            truc_rest,
            session,
            data_type,
            data_pad,
            ack,
            acked_session,
            acknum,
            send_seqnum,
            resent,
            truc_end,
        ) = _unpack_truc(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_TRUC:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if data_length != DATA_LENGTH:
        raise MalformedError("data_length")
    if pad != PAD:
        raise MalformedError("pad")
    if truc_rest != REST:
        raise MalformedError("truc_rest")
    if data_type != DATA_TYPE:
        raise MalformedError("data_type")
    if data_pad != DATA_PAD:
        raise MalformedError("data_pad")
    if truc_end != END:
        raise MalformedError("truc_end")
    if len(raw) < 48:
        raise MalformedError("short")
    if raw[44:48] != _pack_check(crc32(raw[:44])):
        raise MalformedError("check")
    return (
        dst,
        src,
        peer_index,
        dst_endpoint,
        src_endpoint,
        session,
        ack,
        acked_session,
        acknum,
        send_seqnum,
        resent,
        raw[44:44],
    )


def pack_connect(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    src_session: int,
    word: int,
    recv_seqnum: int,
    is_reply: int,
    connect_seqnum: int,
    status: int,
) -> bytes:
    """Ether / OpenMX / Connect."""
    frame = _pack_connect(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_CONNECT,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        CONNECT_LENGTH,
        PAD,
        REST,
        UNUSED,
        UNUSED_INDEX,
        EMPTY,
        src_session,
        word,
        recv_seqnum,
        is_reply,
        connect_seqnum,
        status,
        DATA_PAD,
        END,
    )
    return frame + _pack_check(crc32(frame))


def unpack_connect(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Connect: dst, src, peer_index, dst_endpoint, src_endpoint, src_session, word, recv_seqnum,
    is_reply, connect_seqnum, status, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            connect_length,
            pad,
            connect_rest,
            unused,
            unused_index,
            empty,
            src_session,
            word,
            recv_seqnum,
            is_reply,
            connect_seqnum,
            status,
            data_pad,
            connect_end,
        ) = _unpack_connect(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_CONNECT:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if connect_length != CONNECT_LENGTH:
        raise MalformedError("connect_length")
    if pad != PAD:
        raise MalformedError("pad")
    if connect_rest != REST:
        raise MalformedError("connect_rest")
    if unused != UNUSED:
        raise MalformedError("unused")
    if unused_index != UNUSED_INDEX:
        raise MalformedError("unused_index")
    if empty != EMPTY:
        raise MalformedError("empty")
    if data_pad != DATA_PAD:
        raise MalformedError("data_pad")
    if connect_end != END:
        raise MalformedError("connect_end")
    if len(raw) < 52:
        raise MalformedError("short")
    if raw[48:52] != _pack_check(crc32(raw[:48])):
        raise MalformedError("check")
    return (
        dst,
        src,
        peer_index,
        dst_endpoint,
        src_endpoint,
        src_session,
        word,
        recv_seqnum,
        is_reply,
        connect_seqnum,
        status,
        raw[48:48],
    )


def pack_tiny(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    seqnum: int,
    ack: int,
    match_info: int,
    session: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / OpenMX / Tiny."""
    frame = _pack_tiny(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_TINY,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        len(payload),
        CHECKSUM,
        seqnum,
        ack,
        match_info,
        session,
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_tiny(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Tiny: dst, src, peer_index, dst_endpoint, src_endpoint, seqnum, ack, match_info, session,
    payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            length,
            checksum,
            seqnum,
            ack,
            match_info,
            session,
        ) = _unpack_tiny(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_TINY:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if checksum != CHECKSUM:
        raise MalformedError("checksum")
    end = 40 + length
    if end + 4 > len(raw):
        raise MalformedError("length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return dst, src, peer_index, dst_endpoint, src_endpoint, seqnum, ack, match_info, session, raw[40:end]


def pack_small(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    seqnum: int,
    ack: int,
    match_info: int,
    session: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / OpenMX / Small."""
    frame = _pack_small(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_SMALL,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        len(payload),
        CHECKSUM,
        seqnum,
        ack,
        match_info,
        session,
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_small(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Small: dst, src, peer_index, dst_endpoint, src_endpoint, seqnum, ack, match_info, session,
    payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            length,
            checksum,
            seqnum,
            ack,
            match_info,
            session,
        ) = _unpack_small(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_SMALL:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if checksum != CHECKSUM:
        raise MalformedError("checksum")
    end = 40 + length
    if end + 4 > len(raw):
        raise MalformedError("length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return dst, src, peer_index, dst_endpoint, src_endpoint, seqnum, ack, match_info, session, raw[40:end]


def pack_medium(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    msg_length: int,
    seqnum: int,
    ack: int,
    match_info: int,
    session: int,
    frag_seqnum: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / OpenMX / Medium."""
    frame = _pack_medium(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_MEDIUM,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        msg_length,
        seqnum,
        ack,
        match_info,
        session,
        len(payload),
        frag_seqnum,
        PAD,
        CHECKSUM,
        REST,
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_medium(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Medium: dst, src, peer_index, dst_endpoint, src_endpoint, msg_length, seqnum, ack,
    match_info, session, frag_seqnum, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            msg_length,
            seqnum,
            ack,
            match_info,
            session,
            frag_length,
            frag_seqnum,
            pad,
            checksum,
            medium_rest,
        ) = _unpack_medium(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_MEDIUM:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if pad != PAD:
        raise MalformedError("pad")
    if checksum != CHECKSUM:
        raise MalformedError("checksum")
    if medium_rest != REST:
        raise MalformedError("medium_rest")
    end = 48 + frag_length
    if end + 4 > len(raw):
        raise MalformedError("frag_length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return (
        dst,
        src,
        peer_index,
        dst_endpoint,
        src_endpoint,
        msg_length,
        seqnum,
        ack,
        match_info,
        session,
        frag_seqnum,
        raw[48:end],
    )


def pack_rndv(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    seqnum: int,
    ack: int,
    match_info: int,
    session: int,
    msg_length: int,
    rdma_id: int,
    rdma_seqnum: int,
    rdma_offset: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / OpenMX / Rendezvous."""
    frame = _pack_rndv(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_RNDV,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        len(payload),
        CHECKSUM,
        seqnum,
        ack,
        match_info,
        session,
        msg_length,
        rdma_id,
        rdma_seqnum,
        rdma_offset,
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_rndv(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Rendezvous: dst, src, peer_index, dst_endpoint, src_endpoint, seqnum, ack, match_info,
    session, msg_length, rdma_id, rdma_seqnum, rdma_offset, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            length,
            checksum,
            seqnum,
            ack,
            match_info,
            session,
            msg_length,
            rdma_id,
            rdma_seqnum,
            rdma_offset,
        ) = _unpack_rndv(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_RNDV:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if checksum != CHECKSUM:
        raise MalformedError("checksum")
    end = 48 + length
    if end + 4 > len(raw):
        raise MalformedError("length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return (
        dst,
        src,
        peer_index,
        dst_endpoint,
        src_endpoint,
        seqnum,
        ack,
        match_info,
        session,
        msg_length,
        rdma_id,
        rdma_seqnum,
        rdma_offset,
        raw[48:end],
    )


def pack_pull(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    session: int,
    total_length: int,
    rdma_id: int,
    rdma_seqnum: int,
    rdma_offset: int,
    pull_handle: int,
    magic: int,
    first_frame_offset: int,
    block_length: int,
    frame_index: int,
) -> bytes:
    """Ether / OpenMX / Pull."""
    frame = _pack_pull(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_PULL,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        session,
        total_length,
        rdma_id,
        rdma_seqnum,
        PAD,
        REST,
        rdma_offset,
        pull_handle,
        magic,
        first_frame_offset,
        block_length,
        frame_index,
    )
    return frame + _pack_check(crc32(frame))


def unpack_pull(
    raw: Buffer,
) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Pull: dst, src, peer_index, dst_endpoint, src_endpoint, session, total_length, rdma_id,
    rdma_seqnum, rdma_offset, pull_handle, magic, first_frame_offset, block_length, frame_index, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            session,
            total_length,
            rdma_id,
            rdma_seqnum,
            pad,
            pull_rest,
            rdma_offset,
            pull_handle,
            magic,
            first_frame_offset,
            block_length,
            frame_index,
        ) = _unpack_pull(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_PULL:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if pad != PAD:
        raise MalformedError("pad")
    if pull_rest != REST:
        raise MalformedError("pull_rest")
    if len(raw) < 64:
        raise MalformedError("short")
    if raw[60:64] != _pack_check(crc32(raw[:60])):
        raise MalformedError("check")
    return (
        dst,
        src,
        peer_index,
        dst_endpoint,
        src_endpoint,
        session,
        total_length,
        rdma_id,
        rdma_seqnum,
        rdma_offset,
        pull_handle,
        magic,
        first_frame_offset,
        block_length,
        frame_index,
        raw[60:60],
    )


def pack_pull_reply(
    dst: bytes,
    src: bytes,
    peer_index: int,
    frame_seqnum: int,
    msg_offset: int,
    pull_handle: int,
    magic: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / OpenMX / PullReply."""
    frame = _pack_pull_reply(
        dst, src, ETHERTYPE, peer_index, TYPE_PULL_REPLY, frame_seqnum, len(payload), msg_offset, pull_handle, magic
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_pull_reply(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / PullReply: dst, src, peer_index, frame_seqnum, msg_offset, pull_handle, magic, payload."""
    try:
        dst, src, ether_type, peer_index, type_, frame_seqnum, frame_length, msg_offset, pull_handle, magic = (
            _unpack_pull_reply(raw)
        )
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_PULL_REPLY:
        raise MalformedError("type")
    end = 32 + frame_length
    if end + 4 > len(raw):
        raise MalformedError("frame_length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return dst, src, peer_index, frame_seqnum, msg_offset, pull_handle, magic, raw[32:end]


def pack_notify(
    dst: bytes,
    src: bytes,
    peer_index: int,
    dst_endpoint: int,
    src_endpoint: int,
    session: int,
    total_length: int,
    rdma_id: int,
    rdma_seqnum: int,
    seqnum: int,
    ack: int,
) -> bytes:
    """Ether / OpenMX / Notify."""
    frame = _pack_notify(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_NOTIFY,
        dst_endpoint,
        src_endpoint,
        SRC_GENERATION,
        session,
        total_length,
        rdma_id,
        rdma_seqnum,
        PAD,
        REST,
        seqnum,
        ack,
        END,
    )
    return frame + _pack_check(crc32(frame))


def unpack_notify(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / Notify: dst, src, peer_index, dst_endpoint, src_endpoint, session, total_length, rdma_id,
    rdma_seqnum, seqnum, ack, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            dst_endpoint,
            src_endpoint,
            src_generation,
            session,
            total_length,
            rdma_id,
            rdma_seqnum,
            pad,
            notify_rest,
            seqnum,
            ack,
            notify_end,
        ) = _unpack_notify(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_NOTIFY:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if pad != PAD:
        raise MalformedError("pad")
    if notify_rest != REST:
        raise MalformedError("notify_rest")
    if notify_end != END:
        raise MalformedError("notify_end")
    if len(raw) < 44:
        raise MalformedError("short")
    if raw[40:44] != _pack_check(crc32(raw[:40])):
        raise MalformedError("check")
    return (
        dst,
        src,
        peer_index,
        dst_endpoint,
        src_endpoint,
        session,
        total_length,
        rdma_id,
        rdma_seqnum,
        seqnum,
        ack,
        raw[40:40],
    )


def pack_nack_lib(
    dst: bytes,
    src: bytes,
    peer_index: int,
    src_endpoint: int,
    nack_type: int,
    dst_endpoint: int,
    dst_peer_index: int,
    seqnum: int,
) -> bytes:
    """Ether / OpenMX / NackLib."""
    frame = _pack_nack_lib(
        dst,
        src,
        ETHERTYPE,
        peer_index,
        TYPE_NACK_LIB,
        src_endpoint,
        SRC_GENERATION,
        nack_type,
        PAD,
        REST,
        dst_endpoint,
        dst_peer_index,
        seqnum,
        END,
    )
    return frame + _pack_check(crc32(frame))


def unpack_nack_lib(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / NackLib: dst, src, peer_index, src_endpoint, nack_type, dst_endpoint, dst_peer_index,
    seqnum, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            peer_index,
            type_,
            src_endpoint,
            src_generation,
            nack_type,
            pad,
            nacklib_rest,
            dst_endpoint,
            dst_peer_index,
            seqnum,
            nacklib_end,
        ) = _unpack_nack_lib(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_NACK_LIB:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if nack_type not in (
        NACK_TYPE_BAD_ENDPOINT,
        NACK_TYPE_ENDPOINT_CLOSED,
        NACK_TYPE_BAD_SESSION,
        NACK_TYPE_BAD_RDMAWIN,
    ):
        raise MalformedError("nack_type")
    if pad != PAD:
        raise MalformedError("pad")
    if nacklib_rest != REST:
        raise MalformedError("nacklib_rest")
    if nacklib_end != END:
        raise MalformedError("nacklib_end")
    if len(raw) < 36:
        raise MalformedError("short")
    if raw[32:36] != _pack_check(crc32(raw[:32])):
        raise MalformedError("check")
    return dst, src, peer_index, src_endpoint, nack_type, dst_endpoint, dst_peer_index, seqnum, raw[32:32]


def pack_nack_mcp(
    dst: bytes,
    src: bytes,
    peer_index: int,
    src_endpoint: int,
    nack_type: int,
    pull_handle: int,
    magic: int,
) -> bytes:
    """Ether / OpenMX / NackMcp."""
    frame = _pack_nack_mcp(
        dst, src, ETHERTYPE, peer_index, TYPE_NACK_MCP, src_endpoint, SRC_GENERATION, nack_type, PAD, pull_handle, magic
    )
    return frame + _pack_check(crc32(frame))


def unpack_nack_mcp(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, Buffer]:
    """Ether / OpenMX / NackMcp: dst, src, peer_index, src_endpoint, nack_type, pull_handle, magic, payload."""
    try:
        dst, src, ether_type, peer_index, type_, src_endpoint, src_generation, nack_type, pad, pull_handle, magic = (
            _unpack_nack_mcp(raw)
        )
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if type_ != TYPE_NACK_MCP:
        raise MalformedError("type")
    if src_generation != SRC_GENERATION:
        raise MalformedError("src_generation")
    if nack_type not in (
        NACK_TYPE_BAD_ENDPOINT,
        NACK_TYPE_ENDPOINT_CLOSED,
        NACK_TYPE_BAD_SESSION,
        NACK_TYPE_BAD_RDMAWIN,
    ):
        raise MalformedError("nack_type")
    if pad != PAD:
        raise MalformedError("pad")
    if len(raw) < 36:
        raise MalformedError("short")
    if raw[32:36] != _pack_check(crc32(raw[:32])):
        raise MalformedError("check")
    return dst, src, peer_index, src_endpoint, nack_type, pull_handle, magic, raw[32:32]


def mended(raw: bytes, begin: int = 14) -> bytes:
    """Return the frame with its CRC-32 recomputed; one that is too short, or of no known kind, is unchanged."""
    header = raw[begin:]
    end = 0
    if len(header) >= 30 and header[2] == 35:
        end = begin + 30
    if len(header) >= 34 and header[2] == 36:
        end = begin + 34
    if len(header) >= 26 and header[2] == 37:
        end = begin + 26 + int.from_bytes(header[6:8], "big")
    if len(header) >= 26 and header[2] == 38:
        end = begin + 26 + int.from_bytes(header[6:8], "big")
    if len(header) >= 34 and header[2] == 39:
        end = begin + 34 + int.from_bytes(header[26:28], "big")
    if len(header) >= 34 and header[2] == 40:
        end = begin + 34 + int.from_bytes(header[6:8], "big")
    if len(header) >= 46 and header[2] == 41:
        end = begin + 46
    if len(header) >= 18 and header[2] == 42:
        end = begin + 18 + int.from_bytes(header[4:6], "big")
    if len(header) >= 26 and header[2] == 43:
        end = begin + 26
    if len(header) >= 18 and header[2] == 44:
        end = begin + 18
    if len(header) >= 18 and header[2] == 45:
        end = begin + 18
    if not end or end + 4 > len(raw):
        return raw
    return raw[:end] + _pack_check(crc32(raw[:end])) + raw[end + 4 :]

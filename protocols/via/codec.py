"""The frames of protocols.via, packed and unpacked. Generated: change frames.py, then

    python -m protocols.core.codegen protocols.via

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

ETHERTYPE: Final = 0x5649
OUI: Final = 2
OUI_REST: Final = 0
PROTOCOL: Final = 1
TYPE_SEND: Final = 1
TYPE_RDMA_WRITE: Final = 2
TYPE_CONNECT: Final = 3
TYPE_ACK: Final = 4
TYPE_ERROR: Final = 5
TYPE_RDMA_READ: Final = 6
TYPE_READ_REPLY: Final = 7
FLAGS_LAST: Final = 1
FLAGS_IMMEDIATE: Final = 2
FLAGS_MISSING: Final = 4
STEP_REQUEST: Final = 1
STEP_PEER_REQUEST: Final = 2
STEP_ACCEPT: Final = 3
STEP_REJECT: Final = 4
STEP_NO_MATCH: Final = 5
STEP_DISCONNECT: Final = 6

FRAME: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIH")
"""Ether / VIA."""
REMOTE: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIHQI")
"""Ether / VIA / VIARemote."""
CONNECTION: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIHBBI")
"""Ether / VIA / VIAConnection."""
READ: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIHQI")
"""Ether / VIA / VIARead."""

FRAME_SIZE: Final = 63
REMOTE_SIZE: Final = 75
CONNECTION_SIZE: Final = 69
READ_SIZE: Final = 75

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "oui": (0, 1),
    "oui_rest": (1, 2),
    "protocol": (3, 2),
    "type": (5, 1),
    "flags": (6, 1),
    "flags.last": (6, 1, 0x1),
    "flags.immediate": (6, 1, 0x2),
    "flags.missing": (6, 1, 0x4),
    "sender": (7, 4),
    "receiver": (11, 4),
    "vi": (15, 2),
    "session": (17, 4),
    "from_vi": (21, 2),
    "from_session": (23, 4),
    "sequence": (27, 4),
    "message": (31, 4),
    "total": (35, 4),
    "offset": (39, 4),
    "immediate": (43, 4),
    "length": (47, 2),
    "address": (49, 8, 0, (("type", 2),)),
    "handle": (57, 4, 0, (("type", 2),)),
    "step": (49, 1, 0, (("type", 3),)),
    "reliability": (50, 1, 0, (("type", 3),)),
    "max_transfer": (51, 4, 0, (("type", 3),)),
    "source_address": (49, 8, 0, (("type", 6),)),
    "source_handle": (57, 4, 0, (("type", 6),)),
}
"""For rules: offset after Ethernet, width, mask, and required values of other fields."""

FLOW: Final = ("type",)
"""The fields that identify a flow."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "type": {1: "SEND", 2: "RDMA_WRITE", 3: "CONNECT", 4: "ACK", 5: "ERROR", 6: "RDMA_READ", 7: "READ_REPLY"},
    "step": {1: "REQUEST", 2: "PEER_REQUEST", 3: "ACCEPT", 4: "REJECT", 5: "NO_MATCH", 6: "DISCONNECT"},
}
"""Names of field values."""

KIND: Final = "type"
KINDS: Final[dict[int, Kind]] = {
    TYPE_SEND: Kind(
        "data",
        "VIA SEND[ {flags}] VI {vi} frame {sequence}, message {message}, {length} bytes at {offset} of {total}",
        message=("from_vi", "message"),
        within=("sender", "from_session"),
        part="offset",
        total="total",
    ),
    TYPE_RDMA_WRITE: Kind(
        "data",
        "VIA RDMA_WRITE[ {flags}] VI {vi} frame {sequence}, message {message}, {length} bytes at "
        "{offset} of {total}, to {address:#x} of memory {handle}",
        message=("from_vi", "message"),
        within=("sender", "from_session"),
        part="offset",
        total="total",
    ),
    TYPE_CONNECT: Kind("control", "VIA CONNECT {step}, VI {from_vi} to VI {vi}[, cause {total:#x}]"),
    TYPE_ACK: Kind("ack", "VIA ACK[ {flags}] VI {vi}, up to frame {sequence}"),
    TYPE_ERROR: Kind("control", "VIA ERROR VI {vi}, cause {total:#x}"),
    TYPE_RDMA_READ: Kind(
        "control",
        "VIA RDMA_READ VI {vi} frame {sequence}, message {message}, {total} bytes at "
        "{source_address:#x} of memory {source_handle}",
        message=("from_vi", "message"),
        within=("sender", "from_session"),
        total="total",
    ),
    TYPE_READ_REPLY: Kind(
        "data",
        "VIA READ_REPLY[ {flags}] VI {vi} frame {sequence}, message {message}, {length} bytes at {offset} of {total}",
        message=("vi", "message"),
        within=("receiver", "session"),
        part="offset",
        total="total",
        back=True,
    ),
}
"""Formats of the summaries of frames, by the values of KIND."""

_pack_frame: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIH").pack
_unpack_frame: Final = FRAME.unpack_from
_pack_remote: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIHQI").pack
_unpack_remote: Final = REMOTE.unpack_from
_pack_connection: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIHBBI").pack
_unpack_connection: Final = CONNECTION.unpack_from
_pack_read: Final = struct.Struct("!6s6sHBHHBBIIHIHIIIIIIHQI").pack
_unpack_read: Final = READ.unpack_from
_pack_check: Final = struct.Struct("!I").pack


def type_of(raw: Buffer) -> int:
    """Return the type of any of the frames; it selects the `unpack_*`."""
    if len(raw) < 20:
        raise MalformedError("short")
    return raw[19]


def pack_frame(
    dst: bytes,
    src: bytes,
    type_: int,
    flags: int,
    sender: int,
    receiver: int,
    vi: int,
    session: int,
    from_vi: int,
    from_session: int,
    sequence: int,
    message: int,
    total: int,
    offset: int,
    immediate: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / VIA."""
    frame = _pack_frame(
        dst,
        src,
        ETHERTYPE,
        OUI,
        OUI_REST,
        PROTOCOL,
        type_,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        len(payload),
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_frame(
    raw: Buffer,
) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / VIA: dst, src, type_, flags, sender, receiver, vi, session, from_vi, from_session, sequence,
    message, total, offset, immediate, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            oui,
            oui_rest,
            protocol,
            type_,
            flags,
            sender,
            receiver,
            vi,
            session,
            from_vi,
            from_session,
            sequence,
            message,
            total,
            offset,
            immediate,
            length,
        ) = _unpack_frame(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if oui != OUI:
        raise MalformedError("oui")
    if oui_rest != OUI_REST:
        raise MalformedError("oui_rest")
    if protocol != PROTOCOL:
        raise MalformedError("protocol")
    if type_ not in (TYPE_SEND, TYPE_ACK, TYPE_ERROR, TYPE_READ_REPLY):
        raise MalformedError("type")
    end = 63 + length
    if end + 4 > len(raw):
        raise MalformedError("length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return (
        dst,
        src,
        type_,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        raw[63:end],
    )


def pack_remote(
    dst: bytes,
    src: bytes,
    flags: int,
    sender: int,
    receiver: int,
    vi: int,
    session: int,
    from_vi: int,
    from_session: int,
    sequence: int,
    message: int,
    total: int,
    offset: int,
    immediate: int,
    address: int,
    handle: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / VIA / VIARemote."""
    frame = _pack_remote(
        dst,
        src,
        ETHERTYPE,
        OUI,
        OUI_REST,
        PROTOCOL,
        TYPE_RDMA_WRITE,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        len(payload),
        address,
        handle,
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_remote(
    raw: Buffer,
) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / VIA / VIARemote: dst, src, flags, sender, receiver, vi, session, from_vi, from_session, sequence,
    message, total, offset, immediate, address, handle, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            oui,
            oui_rest,
            protocol,
            type_,
            flags,
            sender,
            receiver,
            vi,
            session,
            from_vi,
            from_session,
            sequence,
            message,
            total,
            offset,
            immediate,
            length,
            address,
            handle,
        ) = _unpack_remote(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if oui != OUI:
        raise MalformedError("oui")
    if oui_rest != OUI_REST:
        raise MalformedError("oui_rest")
    if protocol != PROTOCOL:
        raise MalformedError("protocol")
    if type_ != TYPE_RDMA_WRITE:
        raise MalformedError("type")
    end = 75 + length
    if end + 4 > len(raw):
        raise MalformedError("length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return (
        dst,
        src,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        address,
        handle,
        raw[75:end],
    )


def pack_connection(
    dst: bytes,
    src: bytes,
    flags: int,
    sender: int,
    receiver: int,
    vi: int,
    session: int,
    from_vi: int,
    from_session: int,
    sequence: int,
    message: int,
    total: int,
    offset: int,
    immediate: int,
    step: int,
    reliability: int,
    max_transfer: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / VIA / VIAConnection."""
    frame = _pack_connection(
        dst,
        src,
        ETHERTYPE,
        OUI,
        OUI_REST,
        PROTOCOL,
        TYPE_CONNECT,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        len(payload),
        step,
        reliability,
        max_transfer,
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_connection(
    raw: Buffer,
) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / VIA / VIAConnection: dst, src, flags, sender, receiver, vi, session, from_vi, from_session,
    sequence, message, total, offset, immediate, step, reliability, max_transfer, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            oui,
            oui_rest,
            protocol,
            type_,
            flags,
            sender,
            receiver,
            vi,
            session,
            from_vi,
            from_session,
            sequence,
            message,
            total,
            offset,
            immediate,
            length,
            step,
            reliability,
            max_transfer,
        ) = _unpack_connection(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if oui != OUI:
        raise MalformedError("oui")
    if oui_rest != OUI_REST:
        raise MalformedError("oui_rest")
    if protocol != PROTOCOL:
        raise MalformedError("protocol")
    if type_ != TYPE_CONNECT:
        raise MalformedError("type")
    if step not in (STEP_REQUEST, STEP_PEER_REQUEST, STEP_ACCEPT, STEP_REJECT, STEP_NO_MATCH, STEP_DISCONNECT):
        raise MalformedError("step")
    end = 69 + length
    if end + 4 > len(raw):
        raise MalformedError("length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return (
        dst,
        src,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        step,
        reliability,
        max_transfer,
        raw[69:end],
    )


def pack_read(
    dst: bytes,
    src: bytes,
    flags: int,
    sender: int,
    receiver: int,
    vi: int,
    session: int,
    from_vi: int,
    from_session: int,
    sequence: int,
    message: int,
    total: int,
    offset: int,
    immediate: int,
    source_address: int,
    source_handle: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / VIA / VIARead."""
    frame = _pack_read(
        dst,
        src,
        ETHERTYPE,
        OUI,
        OUI_REST,
        PROTOCOL,
        TYPE_RDMA_READ,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        len(payload),
        source_address,
        source_handle,
    )
    frame += payload
    return frame + _pack_check(crc32(frame))


def unpack_read(
    raw: Buffer,
) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / VIA / VIARead: dst, src, flags, sender, receiver, vi, session, from_vi, from_session, sequence,
    message, total, offset, immediate, source_address, source_handle, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            oui,
            oui_rest,
            protocol,
            type_,
            flags,
            sender,
            receiver,
            vi,
            session,
            from_vi,
            from_session,
            sequence,
            message,
            total,
            offset,
            immediate,
            length,
            source_address,
            source_handle,
        ) = _unpack_read(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if oui != OUI:
        raise MalformedError("oui")
    if oui_rest != OUI_REST:
        raise MalformedError("oui_rest")
    if protocol != PROTOCOL:
        raise MalformedError("protocol")
    if type_ != TYPE_RDMA_READ:
        raise MalformedError("type")
    end = 75 + length
    if end + 4 > len(raw):
        raise MalformedError("length")
    if raw[end : end + 4] != _pack_check(crc32(raw[:end])):
        raise MalformedError("check")
    return (
        dst,
        src,
        flags,
        sender,
        receiver,
        vi,
        session,
        from_vi,
        from_session,
        sequence,
        message,
        total,
        offset,
        immediate,
        source_address,
        source_handle,
        raw[75:end],
    )


def mended(raw: bytes, begin: int = 14) -> bytes:
    """Return the frame with its CRC-32 recomputed; one that is too short, or of no known kind, is unchanged."""
    header = raw[begin:]
    end = 0
    if len(header) >= 49:
        end = begin + 49 + int.from_bytes(header[47:49], "big")
    if len(header) >= 61 and header[5] == 2:
        end = begin + 61 + int.from_bytes(header[47:49], "big")
    if len(header) >= 55 and header[5] == 3:
        end = begin + 55 + int.from_bytes(header[47:49], "big")
    if len(header) >= 61 and header[5] == 6:
        end = begin + 61 + int.from_bytes(header[47:49], "big")
    if not end or end + 4 > len(raw):
        return raw
    return raw[:end] + _pack_check(crc32(raw[:end])) + raw[end + 4 :]

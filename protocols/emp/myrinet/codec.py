"""The frames of protocols.emp.myrinet, packed and unpacked. Generated: change frames.py, then

    python -m protocols.core.codegen protocols.emp.myrinet

Frames are complete, from the destination address on. `pack_*` takes every field that is not fixed and returns a
frame; `unpack_*` returns the same fields and the payload, a slice of the frame, or raises MalformedError. MAC addresses
are 6 bytes. A number that is too large for its field raises struct.error; in a bit field only its low bits count.

`*_behind` are for frames whose first PREFIX_SIZE bytes are known: these are given as bytes; only the rest is unpacked.
"""

from __future__ import annotations

import struct
from typing import Final

from protocols.core.checksum import crc32
from protocols.core.firmware import Buffer
from protocols.core.frame_kinds import Kind
from protocols.core.malformed import MalformedError

ETHERTYPE: Final = 0x88B6
VERSION: Final = 1
TYPE_MESSAGE: Final = 1
TYPE_DATA: Final = 2
TYPE_ACK: Final = 3
FLAGS_LAST: Final = 1
STATUS_OK: Final = 0
STATUS_RESTARTED: Final = 1

FRAME: Final = struct.Struct("!6s6sHHBBBBIIIIHHI")
"""Ether / Myrinet / EMP."""
MESSAGE: Final = struct.Struct("!6s6sHHBBBBIIIIHHIHHIII")
"""Ether / Myrinet / EMP / EMPMessage."""

FRAME_SIZE: Final = 44
MESSAGE_SIZE: Final = 60
PREFIX_SIZE: Final = 28

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "version": (2, 1),
    "type": (3, 1),
    "flags": (4, 1),
    "flags.last": (4, 1, 0x1),
    "unit": (5, 1),
    "sender": (6, 4),
    "receiver": (10, 4),
    "message": (14, 4),
    "frame": (18, 4),
    "length": (22, 2),
    "status": (24, 2),
    "check": (26, 4),
    "source": (30, 2, 0, (("type", 1),)),
    "destination": (32, 2, 0, (("type", 1),)),
    "tag": (34, 4, 0, (("type", 1),)),
    "total": (38, 4, 0, (("type", 1),)),
    "oldest": (42, 4, 0, (("type", 1),)),
}
"""For rules: offset after Ethernet, width, mask, and required values of other fields."""

FLOW: Final = ("type",)
"""The fields that identify a flow."""

BEGINS: Final = b"\x00\x06"
"""After Ethernet, the fields that identify these frames."""

ROUTED: Final = True
"""A source route may precede the header."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "type": {1: "MESSAGE", 2: "DATA", 3: "ACK"},
    "status": {0: "OK", 1: "RESTARTED"},
}
"""Names of field values."""

CHECK: Final = "check"
"""The field that is computed from all others."""

KIND: Final = "type"
KINDS: Final[dict[int, Kind]] = {
    TYPE_MESSAGE: Kind(
        "data",
        "EMP MESSAGE[ {flags}] message {message} frame {frame}, node {source} to {destination}, tag"
        " {tag:#x}, {length} of {total} bytes",
        message=("message",),
        within=("sender",),
        part="frame",
        total="total",
    ),
    TYPE_DATA: Kind(
        "data",
        "EMP DATA[ {flags}] message {message} frame {frame}, {length} bytes",
        message=("message",),
        within=("sender",),
        part="frame",
    ),
    TYPE_ACK: Kind(
        "ack",
        "EMP ACK[ {flags}] message {message} frame {frame}[, {status}]",
        message=("message",),
        within=("sender",),
        part="frame",
        back=True,
    ),
}
"""Formats of the summaries of frames, by the values of KIND."""

_pack_frame: Final = struct.Struct("!6s6sHHBBBBIIIIHH").pack
_unpack_frame: Final = FRAME.unpack_from
_pack_frame_behind: Final = struct.Struct("!28sIIHH").pack
_unpack_frame_behind: Final = struct.Struct("!28xIIHHI").unpack_from
_pack_message: Final = struct.Struct("!6s6sHHBBBBIIIIHH").pack
_unpack_message: Final = MESSAGE.unpack_from
_pack_message_rest: Final = struct.Struct("!HHIII").pack
_pack_message_behind: Final = struct.Struct("!28sIIHH").pack
_unpack_message_behind: Final = struct.Struct("!28xIIHHIHHIII").unpack_from
_pack_check: Final = struct.Struct("!I").pack


def type_of(raw: Buffer) -> int:
    """Return the type of any of the frames; it selects the `unpack_*`."""
    if len(raw) < 18:
        raise MalformedError("short")
    return raw[17]


def pack_frame(
    dst: bytes,
    src: bytes,
    type_: int,
    flags: int,
    unit: int,
    sender: int,
    receiver: int,
    message: int,
    frame: int,
    status: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / Myrinet / EMP."""
    header = _pack_frame(
        dst, src, ETHERTYPE, 6, VERSION, type_, flags, unit, sender, receiver, message, frame, len(payload), status
    )
    return header + _pack_check(crc32(payload, crc32(header))) + payload


def unpack_frame(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / Myrinet / EMP: dst, src, type_, flags, unit, sender, receiver, message, frame, status, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            myrinet_type,
            version,
            type_,
            flags,
            unit,
            sender,
            receiver,
            message,
            frame,
            length,
            status,
            check,
        ) = _unpack_frame(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if myrinet_type != 6:
        raise MalformedError("myrinet_type")
    if version != VERSION:
        raise MalformedError("version")
    if type_ not in (TYPE_DATA, TYPE_ACK):
        raise MalformedError("type")
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 44 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[44:end]
    if crc32(rest, crc32(raw[:40])) != check:
        raise MalformedError("check")
    return dst, src, type_, flags, unit, sender, receiver, message, frame, status, rest


def pack_frame_behind(prefix: bytes, message: int, frame: int, status: int, payload: Buffer = b"") -> bytes:
    """Ether / Myrinet / EMP, which begins with prefix."""
    header = _pack_frame_behind(prefix, message, frame, len(payload), status)
    return header + _pack_check(crc32(payload, crc32(header))) + payload


def unpack_frame_behind(raw: Buffer) -> tuple[int, int, int, Buffer]:
    """Ether / Myrinet / EMP, whose beginning is known: message, frame, status, payload."""
    try:
        message, frame, length, status, check = _unpack_frame_behind(raw)
    except struct.error:
        raise MalformedError("short") from None
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 44 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[44:end]
    if crc32(rest, crc32(raw[:40])) != check:
        raise MalformedError("check")
    return message, frame, status, rest


def pack_message(
    dst: bytes,
    src: bytes,
    flags: int,
    unit: int,
    sender: int,
    receiver: int,
    message: int,
    frame: int,
    status: int,
    source: int,
    destination: int,
    tag: int,
    total: int,
    oldest: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / Myrinet / EMP / EMPMessage."""
    rest = _pack_message_rest(source, destination, tag, total, oldest) + payload
    header = _pack_message(
        dst,
        src,
        ETHERTYPE,
        6,
        VERSION,
        TYPE_MESSAGE,
        flags,
        unit,
        sender,
        receiver,
        message,
        frame,
        len(payload),
        status,
    )
    return header + _pack_check(crc32(rest, crc32(header))) + rest


def unpack_message(
    raw: Buffer,
) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / Myrinet / EMP / EMPMessage: dst, src, flags, unit, sender, receiver, message, frame, status, source,
    destination, tag, total, oldest, payload."""
    try:
        (
            dst,
            src,
            ether_type,
            myrinet_type,
            version,
            type_,
            flags,
            unit,
            sender,
            receiver,
            message,
            frame,
            length,
            status,
            check,
            source,
            destination,
            tag,
            total,
            oldest,
        ) = _unpack_message(raw)
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if myrinet_type != 6:
        raise MalformedError("myrinet_type")
    if version != VERSION:
        raise MalformedError("version")
    if type_ != TYPE_MESSAGE:
        raise MalformedError("type")
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 60 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[44:end]
    if crc32(rest, crc32(raw[:40])) != check:
        raise MalformedError("check")
    return (
        dst,
        src,
        flags,
        unit,
        sender,
        receiver,
        message,
        frame,
        status,
        source,
        destination,
        tag,
        total,
        oldest,
        rest[16:],
    )


def pack_message_behind(
    prefix: bytes,
    message: int,
    frame: int,
    status: int,
    source: int,
    destination: int,
    tag: int,
    total: int,
    oldest: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / Myrinet / EMP / EMPMessage, which begins with prefix."""
    rest = _pack_message_rest(source, destination, tag, total, oldest) + payload
    header = _pack_message_behind(prefix, message, frame, len(payload), status)
    return header + _pack_check(crc32(rest, crc32(header))) + rest


def unpack_message_behind(raw: Buffer) -> tuple[int, int, int, int, int, int, int, int, Buffer]:
    """Ether / Myrinet / EMP / EMPMessage, whose beginning is known: message, frame, status, source, destination,
    tag, total, oldest, payload."""
    try:
        message, frame, length, status, check, source, destination, tag, total, oldest = _unpack_message_behind(raw)
    except struct.error:
        raise MalformedError("short") from None
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 60 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[44:end]
    if crc32(rest, crc32(raw[:40])) != check:
        raise MalformedError("check")
    return message, frame, status, source, destination, tag, total, oldest, rest[16:]


def mended(raw: bytes, begin: int = 14) -> bytes:
    """Return the frame with its check recomputed; a frame that is too short is unchanged. begin: offset of the
    header, after a source route if there is one."""
    header = raw[begin:]
    if len(header) < 30:
        return raw
    size = 30
    if header[3] == 1:
        size = 46
    end = size + int.from_bytes(header[22:24], "big")
    check = crc32(header[30:end], crc32(header[:26], crc32(raw[:14])))
    return raw[:begin] + header[:26] + _pack_check(check) + header[30:]

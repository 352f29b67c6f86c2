"""The frames of protocols.emp, packed and unpacked. Generated: change frames.py, then

    python -m protocols.core.codegen protocols.emp

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

ETHERTYPE: Final = 0x88B5
VERSION: Final = 1
TYPE_MESSAGE: Final = 1
TYPE_DATA: Final = 2
TYPE_ACK: Final = 3
FLAGS_LAST: Final = 1
STATUS_OK: Final = 0
STATUS_RESTARTED: Final = 1

FRAME: Final = struct.Struct("!6s6sHBBBBIIIIHHI")
"""Ether / EMP."""
MESSAGE: Final = struct.Struct("!6s6sHBBBBIIIIHHIHHIII")
"""Ether / EMP / EMPMessage."""

FRAME_SIZE: Final = 42
MESSAGE_SIZE: Final = 58
PREFIX_SIZE: Final = 26

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "version": (0, 1),
    "type": (1, 1),
    "flags": (2, 1),
    "flags.last": (2, 1, 0x1),
    "unit": (3, 1),
    "sender": (4, 4),
    "receiver": (8, 4),
    "message": (12, 4),
    "frame": (16, 4),
    "length": (20, 2),
    "status": (22, 2),
    "check": (24, 4),
    "source": (28, 2, 0, (("type", 1),)),
    "destination": (30, 2, 0, (("type", 1),)),
    "tag": (32, 4, 0, (("type", 1),)),
    "total": (36, 4, 0, (("type", 1),)),
    "oldest": (40, 4, 0, (("type", 1),)),
}
"""For rules: offset after Ethernet, width, mask, and required values of other fields."""

FLOW: Final = ("type",)
"""The fields that identify a flow."""

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

_pack_frame: Final = struct.Struct("!6s6sHBBBBIIIIHH").pack
_unpack_frame: Final = FRAME.unpack_from
_pack_frame_behind: Final = struct.Struct("!26sIIHH").pack
_unpack_frame_behind: Final = struct.Struct("!26xIIHHI").unpack_from
_pack_message: Final = struct.Struct("!6s6sHBBBBIIIIHH").pack
_unpack_message: Final = MESSAGE.unpack_from
_pack_message_rest: Final = struct.Struct("!HHIII").pack
_pack_message_behind: Final = struct.Struct("!26sIIHH").pack
_unpack_message_behind: Final = struct.Struct("!26xIIHHIHHIII").unpack_from
_pack_check: Final = struct.Struct("!I").pack


def type_of(raw: Buffer) -> int:
    """Return the type of any of the frames; it selects the `unpack_*`."""
    if len(raw) < 16:
        raise MalformedError("short")
    return raw[15]


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
    """Ether / EMP."""
    header = _pack_frame(
        dst, src, ETHERTYPE, VERSION, type_, flags, unit, sender, receiver, message, frame, len(payload), status
    )
    return header + _pack_check(crc32(payload, crc32(header))) + payload


def unpack_frame(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / EMP: dst, src, type_, flags, unit, sender, receiver, message, frame, status, payload."""
    try:
        dst, src, ether_type, version, type_, flags, unit, sender, receiver, message, frame, length, status, check = (
            _unpack_frame(raw)
        )
    except struct.error:
        raise MalformedError("short") from None
    if ether_type != ETHERTYPE:
        raise MalformedError("ether_type")
    if version != VERSION:
        raise MalformedError("version")
    if type_ not in (TYPE_DATA, TYPE_ACK):
        raise MalformedError("type")
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 42 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[42:end]
    if crc32(rest, crc32(raw[:38])) != check:
        raise MalformedError("check")
    return dst, src, type_, flags, unit, sender, receiver, message, frame, status, rest


def pack_frame_behind(prefix: bytes, message: int, frame: int, status: int, payload: Buffer = b"") -> bytes:
    """Ether / EMP, which begins with prefix."""
    header = _pack_frame_behind(prefix, message, frame, len(payload), status)
    return header + _pack_check(crc32(payload, crc32(header))) + payload


def unpack_frame_behind(raw: Buffer) -> tuple[int, int, int, Buffer]:
    """Ether / EMP, whose beginning is known: message, frame, status, payload."""
    try:
        message, frame, length, status, check = _unpack_frame_behind(raw)
    except struct.error:
        raise MalformedError("short") from None
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 42 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[42:end]
    if crc32(rest, crc32(raw[:38])) != check:
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
    """Ether / EMP / EMPMessage."""
    rest = _pack_message_rest(source, destination, tag, total, oldest) + payload
    header = _pack_message(
        dst, src, ETHERTYPE, VERSION, TYPE_MESSAGE, flags, unit, sender, receiver, message, frame, len(payload), status
    )
    return header + _pack_check(crc32(rest, crc32(header))) + rest


def unpack_message(
    raw: Buffer,
) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / EMP / EMPMessage: dst, src, flags, unit, sender, receiver, message, frame, status, source,
    destination, tag, total, oldest, payload."""
    try:
        (
            dst,
            src,
            ether_type,
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
    if version != VERSION:
        raise MalformedError("version")
    if type_ != TYPE_MESSAGE:
        raise MalformedError("type")
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 58 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[42:end]
    if crc32(rest, crc32(raw[:38])) != check:
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
    """Ether / EMP / EMPMessage, which begins with prefix."""
    rest = _pack_message_rest(source, destination, tag, total, oldest) + payload
    header = _pack_message_behind(prefix, message, frame, len(payload), status)
    return header + _pack_check(crc32(rest, crc32(header))) + rest


def unpack_message_behind(raw: Buffer) -> tuple[int, int, int, int, int, int, int, int, Buffer]:
    """Ether / EMP / EMPMessage, whose beginning is known: message, frame, status, source, destination, tag, total,
    oldest, payload."""
    try:
        message, frame, length, status, check, source, destination, tag, total, oldest = _unpack_message_behind(raw)
    except struct.error:
        raise MalformedError("short") from None
    if status not in (STATUS_OK, STATUS_RESTARTED):
        raise MalformedError("status")
    end = 58 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[42:end]
    if crc32(rest, crc32(raw[:38])) != check:
        raise MalformedError("check")
    return message, frame, status, source, destination, tag, total, oldest, rest[16:]


def mended(raw: bytes, begin: int = 14) -> bytes:
    """Return the frame with its check recomputed; a frame that is too short is unchanged. begin: offset of the
    header, after a source route if there is one."""
    header = raw[begin:]
    if len(header) < 28:
        return raw
    size = 28
    if header[1] == 1:
        size = 44
    end = size + int.from_bytes(header[20:22], "big")
    check = crc32(header[28:end], crc32(header[:24], crc32(raw[:14])))
    return raw[:begin] + header[:24] + _pack_check(check) + header[28:]

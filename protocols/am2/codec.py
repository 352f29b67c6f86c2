"""The frames of protocols.am2, packed and unpacked. Generated: change frames.py, then

    python -m protocols.core.codegen protocols.am2

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

ETHERTYPE: Final = 0x88B6
KIND_MESSAGE: Final = 1
KIND_ACK: Final = 2
KIND_NACK: Final = 3
REASON_NONE: Final = 0
REASON_OVERRUN: Final = 1
REASON_NOT_RESIDENT: Final = 2
REASON_NO_MAPPING: Final = 3
REASON_BAD_TAG: Final = 4
REASON_NO_ENDPOINT: Final = 5
REASON_BAD_SEGMENT: Final = 6
REASON_RESTARTED: Final = 7
FORM_SHORT: Final = 0
FORM_MEDIUM: Final = 1
FORM_BULK: Final = 2
FORM_GONE: Final = 3
FORM_LOST_REPLY: Final = 4
FORM_KEEPALIVE: Final = 5
FLAGS_REPLY: Final = 1

ANSWER: Final = struct.Struct("!6s6sHHBBHHIIBBHIHI")
"""Ether / Myrinet / AM2."""
MESSAGE: Final = struct.Struct("!6s6sHHBBHHIIBBHIHIBBBBHHQIII")
"""Ether / Myrinet / AM2 / AM2Message."""

ANSWER_SIZE: Final = 44
MESSAGE_SIZE: Final = 72

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "kind": (2, 1),
    "reason": (3, 1),
    "source": (4, 2),
    "destination": (6, 2),
    "sender": (8, 4),
    "receiver": (12, 4),
    "channel": (16, 1),
    "generation": (17, 1),
    "sequence": (18, 2),
    "stamp": (20, 4),
    "length": (24, 2),
    "check": (26, 4),
    "form": (30, 1, 0, (("kind", 1),)),
    "flags": (31, 1, 0, (("kind", 1),)),
    "flags.reply": (31, 1, 0x1, (("kind", 1),)),
    "handler": (32, 1, 0, (("kind", 1),)),
    "arguments": (33, 1, 0, (("kind", 1),)),
    "origin": (34, 2, 0, (("kind", 1),)),
    "endpoint": (36, 2, 0, (("kind", 1),)),
    "tag": (38, 8, 0, (("kind", 1),)),
    "message": (46, 4, 0, (("kind", 1),)),
    "offset": (50, 4, 0, (("kind", 1),)),
    "total": (54, 4, 0, (("kind", 1),)),
}
"""For rules: offset after Ethernet, width, mask, and required values of other fields."""

FLOW: Final = ("kind", "channel")
"""The fields that identify a flow."""

BEGINS: Final = b"\x00\x04"
"""After Ethernet, the fields that identify these frames."""

ROUTED: Final = True
"""A source route may precede the header."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "kind": {1: "MESSAGE", 2: "ACK", 3: "NACK"},
    "reason": {
        0: "NONE",
        1: "OVERRUN",
        2: "NOT_RESIDENT",
        3: "NO_MAPPING",
        4: "BAD_TAG",
        5: "NO_ENDPOINT",
        6: "BAD_SEGMENT",
        7: "RESTARTED",
    },
    "form": {0: "SHORT", 1: "MEDIUM", 2: "BULK", 3: "GONE", 4: "LOST_REPLY", 5: "KEEPALIVE"},
}
"""Names of field values."""

CHECK: Final = "check"
"""The field that is computed from all others."""

KIND: Final = "kind"
KINDS: Final[dict[int, Kind]] = {
    KIND_MESSAGE: Kind(
        "data",
        "AM-II {form}[ {flags}] message {message} of endpoint {source}.{origin} to "
        "{destination}.{endpoint}, handler {handler}, {length} bytes, channel {channel} sequence "
        "{sequence}",
        message=("origin", "message"),
        within=("sender", "flags", "endpoint"),
        part="offset",
        total="total",
        handles=(("channel", "channel"),),
    ),
    KIND_ACK: Kind(
        "ack", "AM-II ACK channel {channel} sequence {sequence}", back=True, handles=(("channel", "channel"),)
    ),
    KIND_NACK: Kind(
        "nack",
        "AM-II NACK channel {channel} sequence {sequence}, {reason}",
        back=True,
        handles=(("channel", "channel"),),
    ),
}
"""Formats of the summaries of frames, by the values of KIND."""

_pack_answer: Final = struct.Struct("!6s6sHHBBHHIIBBHIH").pack
_unpack_answer: Final = ANSWER.unpack_from
_pack_message: Final = struct.Struct("!6s6sHHBBHHIIBBHIH").pack
_unpack_message: Final = MESSAGE.unpack_from
_pack_message_rest: Final = struct.Struct("!BBBBHHQIII").pack
_pack_check: Final = struct.Struct("!I").pack


def kind_of(raw: Buffer) -> int:
    """Return the kind of any of the frames; it selects the `unpack_*`."""
    if len(raw) < 17:
        raise MalformedError("short")
    return raw[16]


def pack_answer(
    dst: bytes,
    src: bytes,
    kind: int,
    reason: int,
    source: int,
    destination: int,
    sender: int,
    receiver: int,
    channel: int,
    generation: int,
    sequence: int,
    stamp: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / Myrinet / AM2."""
    header = _pack_answer(
        dst,
        src,
        ETHERTYPE,
        4,
        kind,
        reason,
        source,
        destination,
        sender,
        receiver,
        channel,
        generation,
        sequence,
        stamp,
        len(payload),
    )
    return header + _pack_check(crc32(payload, crc32(header))) + payload


def unpack_answer(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / Myrinet / AM2: dst, src, kind, reason, source, destination, sender, receiver, channel, generation,
    sequence, stamp, payload."""
    try:
        (
            dst,
            src,
            type_,
            myrinet_type,
            kind,
            reason,
            source,
            destination,
            sender,
            receiver,
            channel,
            generation,
            sequence,
            stamp,
            length,
            check,
        ) = _unpack_answer(raw)
    except struct.error:
        raise MalformedError("short") from None
    if type_ != ETHERTYPE:
        raise MalformedError("type")
    if myrinet_type != 4:
        raise MalformedError("myrinet_type")
    if kind not in (KIND_ACK, KIND_NACK):
        raise MalformedError("kind")
    if reason not in (
        REASON_NONE,
        REASON_OVERRUN,
        REASON_NOT_RESIDENT,
        REASON_NO_MAPPING,
        REASON_BAD_TAG,
        REASON_NO_ENDPOINT,
        REASON_BAD_SEGMENT,
        REASON_RESTARTED,
    ):
        raise MalformedError("reason")
    end = 44 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[44:end]
    if crc32(rest, crc32(raw[:40])) != check:
        raise MalformedError("check")
    return dst, src, kind, reason, source, destination, sender, receiver, channel, generation, sequence, stamp, rest


def pack_message(
    dst: bytes,
    src: bytes,
    reason: int,
    source: int,
    destination: int,
    sender: int,
    receiver: int,
    channel: int,
    generation: int,
    sequence: int,
    stamp: int,
    form: int,
    flags: int,
    handler: int,
    arguments: int,
    origin: int,
    endpoint: int,
    tag: int,
    message: int,
    offset: int,
    total: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / Myrinet / AM2 / AM2Message."""
    rest = _pack_message_rest(form, flags, handler, arguments, origin, endpoint, tag, message, offset, total) + payload
    header = _pack_message(
        dst,
        src,
        ETHERTYPE,
        4,
        KIND_MESSAGE,
        reason,
        source,
        destination,
        sender,
        receiver,
        channel,
        generation,
        sequence,
        stamp,
        len(payload),
    )
    return header + _pack_check(crc32(rest, crc32(header))) + rest


def unpack_message(
    raw: Buffer,
) -> tuple[
    bytes,
    bytes,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    Buffer,
]:
    """Ether / Myrinet / AM2 / AM2Message: dst, src, reason, source, destination, sender, receiver, channel,
    generation, sequence, stamp, form, flags, handler, arguments, origin, endpoint, tag, message, offset, total,
    payload."""
    try:
        (
            dst,
            src,
            type_,
            myrinet_type,
            kind,
            reason,
            source,
            destination,
            sender,
            receiver,
            channel,
            generation,
            sequence,
            stamp,
            length,
            check,
            form,
            flags,
            handler,
            arguments,
            origin,
            endpoint,
            tag,
            message,
            offset,
            total,
        ) = _unpack_message(raw)
    except struct.error:
        raise MalformedError("short") from None
    if type_ != ETHERTYPE:
        raise MalformedError("type")
    if myrinet_type != 4:
        raise MalformedError("myrinet_type")
    if kind != KIND_MESSAGE:
        raise MalformedError("kind")
    if reason not in (
        REASON_NONE,
        REASON_OVERRUN,
        REASON_NOT_RESIDENT,
        REASON_NO_MAPPING,
        REASON_BAD_TAG,
        REASON_NO_ENDPOINT,
        REASON_BAD_SEGMENT,
        REASON_RESTARTED,
    ):
        raise MalformedError("reason")
    if form not in (FORM_SHORT, FORM_MEDIUM, FORM_BULK, FORM_GONE, FORM_LOST_REPLY, FORM_KEEPALIVE):
        raise MalformedError("form")
    end = 72 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[44:end]
    if crc32(rest, crc32(raw[:40])) != check:
        raise MalformedError("check")
    return (
        dst,
        src,
        reason,
        source,
        destination,
        sender,
        receiver,
        channel,
        generation,
        sequence,
        stamp,
        form,
        flags,
        handler,
        arguments,
        origin,
        endpoint,
        tag,
        message,
        offset,
        total,
        rest[28:],
    )


def mended(raw: bytes, begin: int = 14) -> bytes:
    """Return the frame with its check recomputed; a frame that is too short is unchanged. begin: offset of the
    header, after a source route if there is one."""
    header = raw[begin:]
    if len(header) < 30:
        return raw
    size = 30
    if header[2] == 1:
        size = 58
    end = size + int.from_bytes(header[24:26], "big")
    check = crc32(header[30:end], crc32(header[:26], crc32(raw[:14])))
    return raw[:begin] + header[:26] + _pack_check(check) + header[30:]

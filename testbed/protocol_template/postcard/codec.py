"""The frames of postcard, packed and unpacked. Generated: change frames.py, then

    python -m protocols.core.codegen postcard

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

ETHERTYPE: Final = 0x88B7
KIND_CARD: Final = 1
KIND_RECEIPT: Final = 2
KIND_NOTICE: Final = 3
FLAGS_LAST: Final = 1

FRAME: Final = struct.Struct("!6s6sHBBHIIIIHI")
"""Ether / Postcard."""

FRAME_SIZE: Final = 40

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "kind": (0, 1),
    "flags": (1, 1),
    "flags.last": (1, 1, 0x1),
    "context": (2, 2),
    "sender": (4, 4),
    "receiver": (8, 4),
    "number": (12, 4),
    "tag": (16, 4),
    "length": (20, 2),
    "check": (22, 4),
}
"""For rules: offset after Ethernet, width, mask, and required values of other fields."""

FLOW: Final = ("kind",)
"""The fields that identify a flow."""

NAMES: Final[dict[str, dict[int, str]]] = {"kind": {1: "CARD", 2: "RECEIPT", 3: "NOTICE"}}
"""Names of field values."""

CHECK: Final = "check"
"""The field that is computed from all others."""

KIND: Final = "kind"
KINDS: Final[dict[int, Kind]] = {
    KIND_CARD: Kind("data", "POSTCARD CARD[ {flags}] {number}, tag {tag}, {length} bytes", message=("number",)),
    KIND_RECEIPT: Kind("ack", "POSTCARD RECEIPT {number}", message=("number",), back=True),
    KIND_NOTICE: Kind("control", "POSTCARD NOTICE of incarnation {sender}"),
}
"""Formats of the summaries of frames, by the values of KIND."""

_pack_frame: Final = struct.Struct("!6s6sHBBHIIIIH").pack
_unpack_frame: Final = FRAME.unpack_from
_pack_check: Final = struct.Struct("!I").pack


def pack_frame(
    dst: bytes,
    src: bytes,
    kind: int,
    flags: int,
    context: int,
    sender: int,
    receiver: int,
    number: int,
    tag: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / Postcard."""
    header = _pack_frame(dst, src, ETHERTYPE, kind, flags, context, sender, receiver, number, tag, len(payload))
    return header + _pack_check(crc32(payload, crc32(header))) + payload


def unpack_frame(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, Buffer]:
    """Ether / Postcard: dst, src, kind, flags, context, sender, receiver, number, tag, payload."""
    try:
        dst, src, type_, kind, flags, context, sender, receiver, number, tag, length, check = _unpack_frame(raw)
    except struct.error:
        raise MalformedError("short") from None
    if type_ != ETHERTYPE:
        raise MalformedError("type")
    if kind not in (KIND_CARD, KIND_RECEIPT, KIND_NOTICE):
        raise MalformedError("kind")
    end = 40 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[40:end]
    if crc32(rest, crc32(raw[:36])) != check:
        raise MalformedError("check")
    return dst, src, kind, flags, context, sender, receiver, number, tag, rest


def mended(raw: bytes, begin: int = 14) -> bytes:
    """Return the frame with its check recomputed; a frame that is too short is unchanged. begin: offset of the
    header, after a source route if there is one."""
    header = raw[begin:]
    if len(header) < 26:
        return raw
    size = 26
    end = size + int.from_bytes(header[20:22], "big")
    check = crc32(header[26:end], crc32(header[:22], crc32(raw[:14])))
    return raw[:begin] + header[:22] + _pack_check(check) + header[26:]

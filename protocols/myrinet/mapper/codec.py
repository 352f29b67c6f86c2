"""The frames of protocols.myrinet.mapper, packed and unpacked. Generated: change frames.py, then

    python -m protocols.core.codegen protocols.myrinet.mapper

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
KIND_PROBE: Final = 1
KIND_LOOP: Final = 2
KIND_ANSWER: Final = 3
KIND_TABLE: Final = 4
KIND_ACK: Final = 5
KIND_HINT: Final = 6

FRAME: Final = struct.Struct("!6s6sHHBHHIIIHHHHI")
"""Ether / Myrinet / Mapping."""

FRAME_SIZE: Final = 45

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "kind": (2, 1),
    "source": (3, 2),
    "leader": (5, 2),
    "incarnation": (7, 4),
    "number": (11, 4),
    "epoch": (15, 4),
    "author": (19, 2),
    "part": (21, 2),
    "parts": (23, 2),
    "length": (25, 2),
    "check": (27, 4),
}
"""For rules: offset after Ethernet, width, mask, and required values of other fields."""

FLOW: Final = ("kind",)
"""The fields that identify a flow."""

BEGINS: Final = b"\x00\x05"
"""After Ethernet, the fields that identify these frames."""

ROUTED: Final = True
"""A source route may precede the header."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "kind": {1: "PROBE", 2: "LOOP", 3: "ANSWER", 4: "TABLE", 5: "ACK", 6: "HINT"}
}
"""Names of field values."""

CHECK: Final = "check"
"""The field that is computed from all others."""

KIND: Final = "kind"
KINDS: Final[dict[int, Kind]] = {
    KIND_PROBE: Kind("control", "mapping PROBE {number} of node {source}"),
    KIND_LOOP: Kind("control", "mapping LOOP {number} of node {source}"),
    KIND_ANSWER: Kind("control", "mapping ANSWER {number}: node {source}, leader {leader}, routes of epoch {epoch}"),
    KIND_TABLE: Kind("control", "mapping TABLE of epoch {epoch} by node {author}, part {part} of {parts}"),
    KIND_ACK: Kind("control", "mapping ACK of epoch {epoch} by node {author}, part {part} of {parts}"),
    KIND_HINT: Kind("control", "mapping HINT {number} of node {source}"),
}
"""Formats of the summaries of frames, by the values of KIND."""

_pack_frame: Final = struct.Struct("!6s6sHHBHHIIIHHHH").pack
_unpack_frame: Final = FRAME.unpack_from
_pack_check: Final = struct.Struct("!I").pack


def pack_frame(
    dst: bytes,
    src: bytes,
    kind: int,
    source: int,
    leader: int,
    incarnation: int,
    number: int,
    epoch: int,
    author: int,
    part: int,
    parts: int,
    payload: Buffer = b"",
) -> bytes:
    """Ether / Myrinet / Mapping."""
    header = _pack_frame(
        dst, src, ETHERTYPE, 5, kind, source, leader, incarnation, number, epoch, author, part, parts, len(payload)
    )
    return header + _pack_check(crc32(payload, crc32(header))) + payload


def unpack_frame(raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]:
    """Ether / Myrinet / Mapping: dst, src, kind, source, leader, incarnation, number, epoch, author, part, parts,
    payload."""
    try:
        (
            dst,
            src,
            type_,
            myrinet_type,
            kind,
            source,
            leader,
            incarnation,
            number,
            epoch,
            author,
            part,
            parts,
            length,
            check,
        ) = _unpack_frame(raw)
    except struct.error:
        raise MalformedError("short") from None
    if type_ != ETHERTYPE:
        raise MalformedError("type")
    if myrinet_type != 5:
        raise MalformedError("myrinet_type")
    if kind not in (KIND_PROBE, KIND_LOOP, KIND_ANSWER, KIND_TABLE, KIND_ACK, KIND_HINT):
        raise MalformedError("kind")
    end = 45 + length
    if end > len(raw):
        raise MalformedError("length")
    rest = raw[45:end]
    if crc32(rest, crc32(raw[:41])) != check:
        raise MalformedError("check")
    return dst, src, kind, source, leader, incarnation, number, epoch, author, part, parts, rest


def mended(raw: bytes, begin: int = 14) -> bytes:
    """Return the frame with its check recomputed; a frame that is too short is unchanged. begin: offset of the
    header, after a source route if there is one."""
    header = raw[begin:]
    if len(header) < 31:
        return raw
    size = 31
    end = size + int.from_bytes(header[25:27], "big")
    check = crc32(header[31:end], crc32(header[:27], crc32(raw[:14])))
    return raw[:begin] + header[:27] + _pack_check(check) + header[31:]

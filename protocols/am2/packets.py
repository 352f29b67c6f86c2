"""Packets on the wire, as `codec` has them, put together from what is known before: how a frame to a peer begins, and a
message as its host has written it. An envelope of Myrinet's is around each (`protocols.myrinet.envelope`)."""

from __future__ import annotations

import struct
from typing import Final

from protocols.am2.codec import ANSWER_SIZE, FORM_GONE, MESSAGE_SIZE, pack_answer
from protocols.core.checksum import crc32
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import ETHERNET, crc8

PREFIX_SIZE: Final = 30
"""Bytes with which all frames of one kind from one NIC to another begin, up to the incarnations."""
CHECKED: Final = ANSWER_SIZE - 4
"""Bytes in front of the check."""
HEADER: Final = MESSAGE_SIZE - ANSWER_SIZE
"""Bytes of a message's own header."""
OVERHEAD: Final = MESSAGE_SIZE - ETHERNET + 1
"""Bytes behind the Ethernet header that a message's frame has beside its payload and its route."""

_pack_head: Final = struct.Struct(f"!{PREFIX_SIZE}sBBHIH").pack
_pack_check: Final = struct.Struct("!I").pack
_unpack_head: Final = struct.Struct(f"!{PREFIX_SIZE}xBBHIHI").unpack_from
unpack_message: Final = struct.Struct("!BBBBHHQIII").unpack_from
"""A message's header: form, flags, handler, arguments, origin, endpoint, tag, message, offset, total."""
_pack_message: Final = struct.Struct("!BBBBHHQIII").pack
PART: Final = struct.Struct("!II").pack_into
PART_AT: Final = 20
"""Where in it offset and total are."""
_CRC8: Final = tuple(bytes((value,)) for value in range(256))


def prefix(
    to: bytes, own: bytes, kind: int, reason: int, source: int, destination: int, sender: int, receiver: int
) -> bytes:
    """How such frames begin."""
    return pack_answer(to, own, kind, reason, source, destination, sender, receiver, 0, 0, 0, 0)[:PREFIX_SIZE]


def gone(endpoint: int) -> bytes:
    """The body of a message that says that an endpoint is there no more."""
    return _pack_message(FORM_GONE, 0, 0, 0, endpoint, 0, 0, 0, 0, 0)


def packed(begin: bytes, channel: int, generation: int, sequence: int, stamp: int, route: bytes, body: bytes) -> bytes:
    """A message's frame. body: its own header, arguments, data."""
    head = _pack_head(begin, channel, generation, sequence, stamp, len(body) - HEADER)
    frame = head + _pack_check(crc32(body, crc32(head))) + body
    if not route:
        return frame + _CRC8[crc8(frame[ETHERNET:])]
    behind = route + frame[ETHERNET:]
    return frame[:ETHERNET] + behind + _CRC8[crc8(behind)]


def answered(begin: bytes, channel: int, generation: int, sequence: int, stamp: int, route: bytes) -> bytes:
    """The frame of an ACK or a NACK."""
    head = _pack_head(begin, channel, generation, sequence, stamp, 0)
    frame = head + _pack_check(crc32(head))
    if not route:
        return frame + _CRC8[crc8(frame[ETHERNET:])]
    behind = route + frame[ETHERNET:]
    return frame[:ETHERNET] + behind + _CRC8[crc8(behind)]


def unpack_body(frame: bytes) -> tuple[int, int, int, int, bytes]:
    """Channel, generation, sequence, stamp and body of a message whose beginning is known, without its envelope's CRC-8.
    Raises MalformedError."""
    if len(frame) < MESSAGE_SIZE:
        raise MalformedError("short")
    channel, generation, sequence, stamp, length, check = _unpack_head(frame)
    end = MESSAGE_SIZE + length
    if end > len(frame):
        raise MalformedError("length")
    body = frame[ANSWER_SIZE:end]
    if crc32(body, crc32(frame[:CHECKED])) != check:
        raise MalformedError("check")
    return channel, generation, sequence, stamp, body


def unpack_answer(frame: bytes) -> tuple[int, int, int, int]:
    """Channel, generation, sequence and stamp of an answer whose beginning is known. Raises MalformedError."""
    if len(frame) < ANSWER_SIZE:
        raise MalformedError("short")
    channel, generation, sequence, stamp, length, check = _unpack_head(frame)
    if length:
        raise MalformedError("length")
    if crc32(frame[:CHECKED]) != check:
        raise MalformedError("check")
    return channel, generation, sequence, stamp

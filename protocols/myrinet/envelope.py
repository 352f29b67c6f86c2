"""Addition and removal of the parts of a frame that switches change: the source route in front, the CRC-8 at the end.

A route is a sequence of deltas, one for each switch: the output port is the input port + delta, as with Myrinet's
relative addresses (ANSI/VITA 26-1998). Its byte is 0x80 | delta in six bits. A switch consumes the first byte, and
recomputes the CRC-8 (polynomial 0x07, over all bytes after the Ethernet header).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fastcrc import crc8 as _crc8

from protocols.core.firmware import Buffer
from protocols.core.malformed import MalformedError

Route = tuple[int, ...]
"""Deltas, in the order of the switches."""

ETHERNET: Final = 14
"""Bytes of the Ethernet header."""
MAX_HOPS: Final = 64
"""Maximum length of a route, which has one byte per hop."""

_MIN_SIZE: Final = 3
"""Bytes of a packet's type and CRC-8."""

_ROUTE_BIT: Final = 0x80
_DELTA_MASK: Final = 0x3F
_DELTA_SIGN: Final = 0x20

crc8: Final[Callable[[Buffer], int]] = _crc8.smbus
"""CRC-8 with polynomial 0x07, initial value 0, not reflected; 0 for data followed by its own CRC-8."""


def reverse_route(route: Sequence[int]) -> Route:
    """Return the route back over the same links: the deltas reversed and negated."""
    return tuple([-delta for delta in reversed(route)])


def route_bytes(route: Sequence[int]) -> bytes:
    """Encode a route as in a frame. Deltas are -32 to 31."""
    return bytes([_ROUTE_BIT | delta & _DELTA_MASK for delta in route])


def route_of(raw: Buffer) -> Route:
    """Decode a route. Raises MalformedError for bytes that are not a route."""
    if any(byte & ~_DELTA_MASK != _ROUTE_BIT for byte in raw):
        raise MalformedError("route")
    return deltas(raw)


def deltas(raw: Buffer) -> Route:
    """Decode any bytes as a route, as a switch would."""
    return tuple([(byte & _DELTA_MASK ^ _DELTA_SIGN) - _DELTA_SIGN for byte in raw])


def skip_route(raw: Buffer, begin: int = 0) -> int:
    """Return the offset at which a route that begins at `begin` ends: the first byte without its top bit."""
    offset, limit = begin, min(len(raw), begin + MAX_HOPS)
    while offset < limit and raw[offset] & _ROUTE_BIT:
        offset += 1
    return offset


def add_envelope(frame: bytes, route: bytes) -> bytes:
    """Convert a codec's frame to its wire format, with a route."""
    packet = route + frame[ETHERNET:]
    return frame[:ETHERNET] + packet + bytes((crc8(packet),))


def remove_envelope(frame: bytes) -> bytes:
    """Convert a received frame to the codec's form. Raises MalformedError with reason "short", "crc8", or "route":
    route bytes remain, so that the frame has another destination."""
    if len(frame) < ETHERNET + _MIN_SIZE:
        raise MalformedError("short")
    if frame[ETHERNET] & _ROUTE_BIT:
        raise MalformedError("route")
    if crc8(frame[ETHERNET:]):
        raise MalformedError("crc8")
    return frame[:-1]


def stripped(frame: bytes) -> tuple[bytes, Route, bool]:
    """Convert a frame captured on any link to the codec's form; return it, its remaining route, and whether its CRC-8
    is valid. A truncated frame yields the parts that are present."""
    offset = skip_route(frame, ETHERNET)
    route = deltas(frame[ETHERNET:offset])
    is_intact = len(frame) >= offset + _MIN_SIZE and not crc8(frame[ETHERNET:])
    return frame[:ETHERNET] + frame[offset : max(offset, len(frame) - 1)], route, is_intact

"""What changes of a frame on its way, put on and taken off: the source route in front, and the CRC-8 at the end.

A route is a sequence of deltas, one for each switch: the port by which to leave is the port of entry + delta, as Myrinet's
(ANSI/VITA 26-1998) relative addresses have it. A switch consumes its byte, 0x80 | delta in six bits, and makes the CRC-8
(polynomial 0x07, over everything behind the Ethernet header) anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fastcrc import crc8 as _crc8

from protocols.core.firmware import Buffer
from protocols.core.malformed import MalformedError

Route = tuple[int, ...]
"""Deltas, the first switch's first."""

ETHERNET: Final = 14
MOST_HOPS: Final = 64
"""Bytes that are looked through for a route's end."""

_LEAST: Final = 3
"""Bytes of a packet's type and CRC-8."""

_ROUTE: Final = 0x80
_LOW: Final = 0x3F
_SIGN: Final = 0x20

crc8: Final[Callable[[Buffer], int]] = _crc8.smbus
"""Polynomial 0x07, from 0, not reflected; of data with its CRC-8 behind it 0."""


def back(route: Sequence[int]) -> Route:
    """The same links the other way: a switch that was left by a higher port than it was entered is now left by a lower."""
    return tuple([-delta for delta in reversed(route)])


def route_bytes(route: Sequence[int]) -> bytes:
    """As a frame has it. Deltas are from -32 to 31."""
    return bytes([_ROUTE | delta & _LOW for delta in route])


def route_of(raw: Buffer) -> Route:
    """Raises MalformedError for bytes that are no route."""
    if any(byte & 0xC0 != _ROUTE for byte in raw):
        raise MalformedError("route")
    return deltas(raw)


def deltas(raw: Buffer) -> Route:
    """Of bytes whatever they are: what a switch would make of them."""
    return tuple([(byte & _LOW ^ _SIGN) - _SIGN for byte in raw])


def behind_route(raw: Buffer, begin: int = 0) -> int:
    """Where a route ends that begins there: at the first byte without its top bit."""
    at, end = begin, min(len(raw), begin + MOST_HOPS)
    while at < end and raw[at] & _ROUTE:
        at += 1
    return at


def sealed(frame: bytes, route: bytes) -> bytes:
    """A frame of the codec as it goes on the wire, with that route."""
    behind = route + frame[ETHERNET:]
    return frame[:ETHERNET] + behind + bytes((crc8(behind),))


def opened(frame: bytes) -> bytes:
    """A frame that has come, as the codec has it. Raises MalformedError: "short", "crc8", or "route" if it is not used up,
    so that the frame was not meant to end here."""
    if len(frame) < ETHERNET + _LEAST:
        raise MalformedError("short")
    if frame[ETHERNET] & _ROUTE:
        raise MalformedError("route")
    if crc8(frame[ETHERNET:]):
        raise MalformedError("crc8")
    return frame[:-1]


def stripped(frame: bytes) -> tuple[bytes, Route, bool]:
    """A frame as it is on some link, as the codec has it; what is left of its route; whether its CRC-8 is right. Of one that
    is cut off within these what there is."""
    behind = behind_route(frame, ETHERNET)
    route = deltas(frame[ETHERNET:behind])
    intact = len(frame) >= behind + _LEAST and not crc8(frame[ETHERNET:])
    return frame[:ETHERNET] + frame[behind:-1], route, intact

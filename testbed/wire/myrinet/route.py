"""What a switch reads and changes of a frame: the first byte of its route, and the CRC-8 at its end.

A byte of a route is 0x80 | delta: a frame leaves by the port that is so many further than the one by which it came, a
number of six bits with a sign. The switch takes the byte away and makes the CRC-8 anew, by what the byte was worth in it:
so a CRC that was wrong stays wrong, and no frame is read as a whole.
"""

from __future__ import annotations

from typing import Final

from testbed.wire.fields import ETHERNET_HEADER, ROUTE_BYTE

POLYNOMIAL: Final = 0x07
"""x^8 + x^2 + x + 1; the first value is 0, and nothing is added at the end."""

PERIOD: Final = 127
"""A byte that stands so many bytes further from the end is worth the same: x has the order 127 modulo the polynomial."""

_DELTA: Final = 0x3F
_SIGN: Final = 0x20


def delta(byte: int) -> int:
    """How many ports further a byte of a route leads: -32 to 31."""
    return ((byte & _DELTA) ^ _SIGN) - _SIGN


def route_byte(ports: int) -> int:
    """The byte that leads so many ports further. Raises ValueError for more than it can say."""
    if not -_SIGN <= ports < _SIGN:
        raise ValueError(f"a route leads -32 to 31 ports further, not {ports}")
    return ROUTE_BYTE | ports & _DELTA


def _times_x8(byte: int) -> int:
    for _ in range(8):
        byte = byte << 1 ^ (0x100 | POLYNOMIAL if byte & 0x80 else 0)
    return byte


def _worths() -> list[bytes]:
    """By how many bytes follow, modulo PERIOD: what each value of a byte is worth in the CRC."""
    worth, found = bytes(_times_x8(byte) for byte in range(256)), []
    for _ in range(PERIOD):
        found.append(worth)
        worth = bytes(found[0][value] for value in worth)
    return found


_WORTHS: Final = _worths()


def crc8(data: bytes) -> int:
    """Of these bytes. Pieces of PERIOD bytes are added up first, as their places are worth the same."""
    size = len(data)
    if size > PERIOD:
        padded = bytes(-size % PERIOD) + data  # zeros in front are worth nothing
        total = 0
        for begin in range(0, len(padded), PERIOD):
            total ^= int.from_bytes(padded[begin : begin + PERIOD], "big")
        data = total.to_bytes(PERIOD, "big")
    crc, step = 0, _WORTHS[0]
    for byte in data:
        crc = step[crc ^ byte]
    return crc


def closed(head: bytes, packet: bytes) -> bytes:
    """A frame: its Ethernet header, and the packet with its CRC-8."""
    return head + packet + bytes((crc8(packet),))


def is_intact(frame: bytes) -> bool:
    """Its CRC-8 is right."""
    return len(frame) > ETHERNET_HEADER and crc8(frame[ETHERNET_HEADER:]) == 0


def onward(frame: bytes) -> bytes:
    """The frame without the first byte of its route, as a switch sends it on."""
    behind = len(frame) - ETHERNET_HEADER - 2  # between that byte and the CRC
    crc = frame[-1] ^ _WORTHS[behind % PERIOD][frame[ETHERNET_HEADER]]
    return frame[:ETHERNET_HEADER] + frame[ETHERNET_HEADER + 1 : -1] + bytes((crc,))


def truncated(frame: bytes, size: int) -> bytes:
    """What is left of a frame of which so many bytes have gone on, closed by a CRC-8 of which every bit is wrong."""
    packet = frame[ETHERNET_HEADER : ETHERNET_HEADER + size - 1]
    return frame[:ETHERNET_HEADER] + packet + bytes((crc8(packet) ^ 0xFF,))

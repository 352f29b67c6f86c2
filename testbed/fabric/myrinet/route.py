"""Route bytes and the CRC-8 of a Myrinet frame, which a switch updates.

A route byte is 0x80 | delta: the output port is the input port plus delta, a signed number of six bits. The switch
removes the byte, and its contribution to the CRC-8. So a wrong CRC stays wrong, and the switch need not read the complete
frame.
"""

from __future__ import annotations

from typing import Final

from testbed.fates.header_fields import ETHERNET_HEADER, ROUTE_BYTE

POLYNOMIAL: Final = 0x07
"""x^8 + x^2 + x + 1; the initial value is 0, and there is no final XOR."""

PERIOD: Final = 127
"""Bytes after which a byte's contribution to the CRC repeats: x has the order 127 modulo the polynomial."""

_DELTA_MASK: Final = 0x3F
_SIGN: Final = 0x20


def port_delta(byte: int) -> int:
    """Return the delta of port numbers in a route byte: -32 to 31."""
    return ((byte & _DELTA_MASK) ^ _SIGN) - _SIGN


def route_byte(delta: int) -> int:
    """Make the route byte for a delta of port numbers. Raises ValueError unless it is -32 to 31."""
    if not -_SIGN <= delta < _SIGN:
        raise ValueError(f"delta of port numbers must be -32 to 31, got {delta}")
    return ROUTE_BYTE | delta & _DELTA_MASK


def _times_x8(byte: int) -> int:
    for _ in range(8):
        byte = byte << 1 ^ (0x100 | POLYNOMIAL if byte & 0x80 else 0)
    return byte


def _contributions() -> list[bytes]:
    """Compute the contribution of each byte value to the CRC, by the number of bytes after it, modulo PERIOD."""
    table, tables = bytes(_times_x8(byte) for byte in range(256)), []
    for _ in range(PERIOD):
        tables.append(table)
        table = bytes(tables[0][value] for value in table)
    return tables


_TABLES: Final = _contributions()


def crc8(data: bytes) -> int:
    """Compute the CRC-8. Blocks of PERIOD bytes are combined first, since contributions repeat after PERIOD bytes."""
    size = len(data)
    if size > PERIOD:
        padded = bytes(-size % PERIOD) + data  # leading zeros contribute nothing
        total = 0
        for offset in range(0, len(padded), PERIOD):
            total ^= int.from_bytes(padded[offset : offset + PERIOD], "big")
        data = total.to_bytes(PERIOD, "big")
    crc, step = 0, _TABLES[0]
    for byte in data:
        crc = step[crc ^ byte]
    return crc


def append_crc(header: bytes, packet: bytes) -> bytes:
    """Make a frame from its Ethernet header and its packet: append the packet's CRC-8."""
    return header + packet + bytes((crc8(packet),))


def is_intact(frame: bytes) -> bool:
    """Whether the frame's CRC-8 is correct."""
    return len(frame) > ETHERNET_HEADER and crc8(frame[ETHERNET_HEADER:]) == 0


def strip_route_byte(frame: bytes) -> bytes:
    """Return the frame without the first byte of its route, with an updated CRC-8."""
    bytes_after = len(frame) - ETHERNET_HEADER - 2  # number of bytes between the route byte and the CRC
    crc = frame[-1] ^ _TABLES[bytes_after % PERIOD][frame[ETHERNET_HEADER]]
    return frame[:ETHERNET_HEADER] + frame[ETHERNET_HEADER + 1 : -1] + bytes((crc,))


def truncate(frame: bytes, size: int) -> bytes:
    """Truncate a frame to its Ethernet header and `size` bytes, including the CRC-8. The CRC-8 is inverted, so that no
    receiver accepts the frame as complete."""
    packet = frame[ETHERNET_HEADER : ETHERNET_HEADER + size - 1]
    return frame[:ETHERNET_HEADER] + packet + bytes((crc8(packet) ^ 0xFF,))

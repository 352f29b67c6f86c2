"""Captures as pcapng (IETF draft-ietf-opsawg-pcapng): pure, from values to bytes.

Little-endian, times in nanoseconds, no frame cut short, no frame check sequence. The same calls give the same bytes.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

_ETHERNET: Final = 1  # link type
_NANOSECONDS: Final = 9  # if_tsresol: 10^-9 s
_END: Final = b"\0\0\0\0"  # opt_endofopt

_SECTION: Final = struct.Struct("<IIIHHq")
_INTERFACE: Final = struct.Struct("<IIHHI")
_PACKET: Final = struct.Struct("<IIIIIII")
_LENGTH: Final = struct.Struct("<I")
_OPTION: Final = struct.Struct("<HH")
_FLAGS: Final = {
    "inbound": _OPTION.pack(2, 4) + _LENGTH.pack(1),
    "outbound": _OPTION.pack(2, 4) + _LENGTH.pack(2),
}
_PADDING: Final = (b"", b"\0\0\0", b"\0\0", b"\0")  # by length modulo 4

Bound = Literal["inbound", "outbound"]


def section_header(application: str) -> bytes:
    """What a file begins with. application: who writes it."""
    options = _option(4, application.encode()) + _END
    size = _SECTION.size + len(options) + 4
    return _SECTION.pack(0x0A0D0D0A, size, 0x1A2B3C4D, 1, 0, -1) + options + _LENGTH.pack(size)


def interface(name: str) -> bytes:
    """An interface of Ethernet; the first of a file has number 0."""
    options = _option(2, name.encode()) + _option(9, bytes([_NANOSECONDS])) + _END
    size = _INTERFACE.size + len(options) + 4
    return _INTERFACE.pack(1, size, _ETHERNET, 0, 0) + options + _LENGTH.pack(size)


def packet(number: int, time: int, frame: bytes, bound: Bound, comment: str = "") -> bytes:
    """A frame on the interface of that number, at a time in nanoseconds."""
    length = len(frame)
    options = _FLAGS[bound] + _END if not comment else _option(1, comment.encode()) + _FLAGS[bound] + _END
    padding = _PADDING[length & 3]
    size = 32 + length + len(padding) + len(options)  # the seven words before the frame, and the one behind the options
    header = _PACKET.pack(6, size, number, time >> 32, time & 0xFFFF_FFFF, length, length)
    return b"".join((header, frame, padding, options, _LENGTH.pack(size)))


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + value + _PADDING[len(value) & 3]

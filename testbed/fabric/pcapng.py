"""Encoding of captures as pcapng (IETF draft-ietf-opsawg-pcapng).

Files are little-endian, with times in nanoseconds, and complete frames without a frame check sequence. Equal calls return
equal bytes.
"""

from __future__ import annotations

import functools
import struct
from typing import Final, Literal

_ETHERNET: Final = 1  # link type
_NANOSECONDS: Final = 9  # if_tsresol: 10^-9 s
_END: Final = b"\0\0\0\0"  # opt_endofopt

_SECTION: Final = struct.Struct("<IIIHHq")
_INTERFACE: Final = struct.Struct("<IIHHI")
_PACKET: Final = struct.Struct("<IIIIIII")
_LENGTH: Final = struct.Struct("<I")
_STATISTICS: Final = struct.Struct("<IIIII")
_TIME: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<Q")
_OPTION: Final = struct.Struct("<HH")
_FLAGS: Final = {
    "inbound": _OPTION.pack(2, 4) + _LENGTH.pack(1),
    "outbound": _OPTION.pack(2, 4) + _LENGTH.pack(2),
}
_PADDING: Final = (b"", b"\0\0\0", b"\0\0", b"\0")  # padding by length modulo 4

Bound = Literal["inbound", "outbound"]


def section_header(application: str) -> bytes:
    """Encode the section header block, the first block of a file. application: name of the writing program."""
    options = _option(4, application.encode()) + _END
    size = _SECTION.size + len(options) + 4
    return _SECTION.pack(0x0A0D0D0A, size, 0x1A2B3C4D, 1, 0, -1) + options + _LENGTH.pack(size)


def interface(name: str, description: str = "", mac: str = "") -> bytes:
    """Encode the description of an Ethernet interface; the first interface of a file has number 0. mac: the interface's
    address, if it is a NIC."""
    text = _option(3, description.encode()) if description else b""
    address = _option(6, bytes.fromhex(mac.replace(":", ""))) if mac else b""
    options = _option(2, name.encode()) + text + address + _option(9, bytes([_NANOSECONDS])) + _END
    size = _INTERFACE.size + len(options) + 4
    return _INTERFACE.pack(1, size, _ETHERNET, 0, 0) + options + _LENGTH.pack(size)


def packet(number: int, time: int, frame: bytes, bound: Bound, comment: str = "") -> bytes:
    """Encode a frame. number: number of the interface. time: nanoseconds. bound: direction at the interface."""
    before, after = enclose(number, time, len(frame), bound, comment)
    return before + frame + after


def enclose(number: int, time: int, length: int, bound: Bound, comment: str = "") -> tuple[bytes, bytes]:
    """Encode the parts of a frame's block before and after the frame. length: bytes of the frame. For the other
    arguments see `packet`."""
    size, after = (
        _end_without_comment(length, bound) if not comment else _end(length, _option(1, comment.encode()), bound)
    )
    return _PACKET.pack(6, size, number, time >> 32, time & 0xFFFF_FFFF, length, length), after


def statistics(number: int, start: int, end: int, received: int, dropped: int) -> bytes:
    """Encode the statistics of an interface's capture. start, end: times in nanoseconds. received: number of frames,
    including dropped ones. dropped: number of frames that the capturing program did not read in time."""
    options = b"".join(
        (
            _option(2, _TIME.pack(start >> 32, start & 0xFFFF_FFFF)),
            _option(3, _TIME.pack(end >> 32, end & 0xFFFF_FFFF)),
            _option(4, _COUNT.pack(received)),
            _option(5, _COUNT.pack(dropped)),
            _END,
        )
    )
    size = _STATISTICS.size + len(options) + 4
    return _STATISTICS.pack(5, size, number, end >> 32, end & 0xFFFF_FFFF) + options + _LENGTH.pack(size)


def _end(length: int, options: bytes, bound: Bound) -> tuple[int, bytes]:
    """Encode the part of a block after the frame; return the block's length and this part."""
    trailer = _PADDING[length & 3] + options + _FLAGS[bound] + _END
    size = 32 + length + len(trailer)  # the seven words before the frame, and the one behind the options
    return size, trailer + _LENGTH.pack(size)


@functools.lru_cache(maxsize=1 << 14)
def _end_without_comment(length: int, bound: Bound) -> tuple[int, bytes]:
    return _end(length, b"", bound)


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + value + _PADDING[len(value) & 3]

"""Probe frames: what they look like on the wire, and what one that arrives still tells.

They go to 01:80:c2:00:00:0e, which no bridge forwards (IEEE 802.1Q's nearest bridge), from no address, so that no bridge
learns one, with an EtherType for experiments (IEEE 802, local experimental 2). Who they are is written twice, each time
with a checksum: a bit flipped on the way is seen, and costs neither the frame nor its number.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from testbed.kernel.taps import any_of

SMALLEST: Final = 60
"""Bytes: the smallest Ethernet frame, without its frame check sequence."""

COUNTED: Final = 1
"""A probe that is measured."""
MARKER: Final = 2
"""One that only shows that the way is open, and that what was sent before it has arrived."""
TRAIN: Final = 3
"""One of many close together, for the rate."""

_DESTINATION: Final = bytes.fromhex("0180c200000e")
_ETHERTYPE: Final = 0x88B6
_HEADER: Final = _DESTINATION + bytes(6) + _ETHERTYPE.to_bytes(2, "big")
_MAGIC: Final = 0x74627072
_IDENTITY: Final = struct.Struct(">IIHBxI")  # magic, run, way, kind, number
_CHECK: Final = struct.Struct(">I")
_COPY: Final = _IDENTITY.size + _CHECK.size
_FIRST: Final = len(_HEADER)
_SECOND: Final = _FIRST + _COPY
_REST: Final = bytes(SMALLEST - _SECOND - _COPY)

ACCEPTED: Final = any_of(
    [
        (12, 2, _ETHERTYPE),
        (_FIRST, 4, _MAGIC),
        (_SECOND, 4, _MAGIC),
        (0, 4, int.from_bytes(_DESTINATION[:4], "big")),
    ]
)
"""A tap's filter: a probe, even with a flipped bit, and hardly anything else."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A probe as it was found. intact: not a bit of its beginning was changed."""

    run: int
    way: int
    kind: int
    number: int
    intact: bool


def build(run: int, way: int, kind: int, number: int, size: int = SMALLEST) -> bytes:
    """A probe of `size` bytes, at least the smallest frame. run: tells the probes of several checks apart."""
    identity = _IDENTITY.pack(_MAGIC, run, way, kind, number)
    copy = identity + _CHECK.pack(zlib.crc32(identity))
    return (_HEADER + copy + copy + _REST).ljust(size, b"\0")


def read(head: bytes) -> Seen | None:
    """What the first bytes of a frame say; None if it is no probe, or not to be told any more."""
    first, second = head[_FIRST:_SECOND], head[_SECOND : _SECOND + _COPY]
    for copy in (first, second):
        if len(copy) < _COPY or _CHECK.unpack_from(copy, _IDENTITY.size)[0] != zlib.crc32(copy[: _IDENTITY.size]):
            continue
        magic, run, way, kind, number = _IDENTITY.unpack_from(copy)
        if magic != _MAGIC:
            return None
        intact = first == second and head[:_FIRST] == _HEADER and head[_SECOND + _COPY : SMALLEST] == _REST
        return Seen(run, way, kind, number, intact)
    return None

"""Probe frames: their format on the wire, and what can be read from one that arrives.

They go to 01:80:c2:00:00:0e, which no bridge forwards (IEEE 802.1Q's nearest bridge), from address zero, so that no
bridge learns one, with an EtherType for experiments (IEEE 802, local experimental 2). Their identity is written twice,
each time with a checksum: a flipped bit is detected, and costs neither the frame nor its number.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from testbed.kernel.taps import pass_any

SMALLEST: Final = 60
"""Bytes: the smallest Ethernet frame, without its frame check sequence."""

COUNTED: Final = 1
"""Kind of a probe that is measured."""
MARKER: Final = 2
"""Kind of a probe that only shows that the way is open and that all earlier probes have arrived."""
TRAIN: Final = 3
"""Kind of a probe of a train, for the rate."""

_DESTINATION: Final = bytes.fromhex("0180c200000e")
_ETHERTYPE: Final = 0x88B6
_HEADER: Final = _DESTINATION + bytes(6) + _ETHERTYPE.to_bytes(2, "big")
_MAGIC: Final = 0x74627072
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "big")
_IDENTITY: Final = struct.Struct(">IIHBxI")  # magic, run, way, kind, number
_CHECK: Final = struct.Struct(">I")
_COPY: Final = _IDENTITY.size + _CHECK.size
_FIRST: Final = len(_HEADER)
_SECOND: Final = _FIRST + _COPY
_REST: Final = bytes(SMALLEST - _SECOND - _COPY)

ACCEPTED: Final = pass_any(
    [
        (12, 2, _ETHERTYPE),
        (_FIRST, 4, _MAGIC),
        (_SECOND, 4, _MAGIC),
        (0, 4, int.from_bytes(_DESTINATION[:4], "big")),
    ]
)
"""A tap's filter: passes probes, even with a flipped bit, and hardly anything else."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A received probe. intact: no bit of its beginning was changed."""

    run: int
    path: int
    kind: int
    number: int
    intact: bool


def build(run: int, path: int, kind: int, number: int, size: int = SMALLEST) -> bytes:
    """Build a probe of `size` bytes, at least SMALLEST. run: distinguishes the probes of several checks."""
    identity = _IDENTITY.pack(_MAGIC, run, path, kind, number)
    copy = identity + _CHECK.pack(zlib.crc32(identity))
    return (_HEADER + copy + copy + _REST).ljust(size, b"\0")


def read(head: bytes) -> Seen | None:
    """Parse the first bytes of a frame, perhaps with a source route or a cell's header in front; None if it is no probe,
    or one that is not recognizable any more."""
    seen = _read(head)
    if seen is None and (begin := head.find(_MAGIC_BYTES, _FIRST)) > _FIRST:
        return _read(head[:_FIRST] + head[begin:])
    return seen


def _read(head: bytes) -> Seen | None:
    first, second = head[_FIRST:_SECOND], head[_SECOND : _SECOND + _COPY]
    for copy in (first, second):
        if len(copy) < _COPY or _CHECK.unpack_from(copy, _IDENTITY.size)[0] != zlib.crc32(copy[: _IDENTITY.size]):
            continue
        magic, run, path, kind, number = _IDENTITY.unpack_from(copy)
        if magic != _MAGIC:
            return None
        intact = first == second and head[:_FIRST] == _HEADER and head[_SECOND + _COPY : SMALLEST] == _REST
        return Seen(run, path, kind, number, intact)
    return None

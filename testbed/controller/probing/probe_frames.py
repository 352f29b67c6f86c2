"""Probe frames: building and parsing.

The destination is 01:80:c2:00:00:0e, which bridges do not forward (IEEE 802.1Q, nearest bridge). The source is address
zero, so that bridges do not learn it. The EtherType is for experiments (IEEE 802, local experimental 2). A frame has two
copies of its identity, each with a checksum: after a flipped bit, the corruption is detected and the number is still known.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from testbed.kernel.taps import pass_any

MIN_SIZE: Final = 60
"""Bytes of the smallest Ethernet frame, without frame check sequence."""

COUNTED: Final = 1
"""Kind of a probe that measures delay, loss and order."""
MARKER: Final = 2
"""Kind of a probe that shows that the path works, and that earlier probes have arrived or are lost."""
TRAIN: Final = 3
"""Kind of a probe in a train, which measures the rate."""

_DESTINATION: Final = bytes.fromhex("0180c200000e")
_ETHERTYPE: Final = 0x88B6
_HEADER: Final = _DESTINATION + bytes(6) + _ETHERTYPE.to_bytes(2, "big")
_MAGIC: Final = 0x74627072
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "big")
_IDENTITY: Final = struct.Struct(">IIHBxI")  # magic, run, path, kind, number
_CHECK: Final = struct.Struct(">I")
_COPY_SIZE: Final = _IDENTITY.size + _CHECK.size
_FIRST_COPY: Final = len(_HEADER)
_SECOND_COPY: Final = _FIRST_COPY + _COPY_SIZE
_PADDING: Final = bytes(MIN_SIZE - _SECOND_COPY - _COPY_SIZE)

ACCEPTED: Final = pass_any(
    [
        (12, 2, _ETHERTYPE),
        (_FIRST_COPY, 4, _MAGIC),
        (_SECOND_COPY, 4, _MAGIC),
        (0, 4, int.from_bytes(_DESTINATION[:4], "big")),
    ]
)
"""Filter of a tap: passes probes, also with a flipped bit, and hardly any other frame."""


@dataclass(frozen=True, slots=True)
class ReceivedProbe:
    """A received probe. run, path, kind, number: as in `build`. is_intact: no bit of header, identity and padding was
    changed."""

    run: int
    path: int
    kind: int
    number: int
    is_intact: bool


def build(run: int, path: int, kind: int, number: int, size: int = MIN_SIZE) -> bytes:
    """Build a probe of `size` bytes, at least MIN_SIZE. run: distinguishes probes of different checks. path: number of the
    path. kind: COUNTED, MARKER or TRAIN."""
    identity = _IDENTITY.pack(_MAGIC, run, path, kind, number)
    copy = identity + _CHECK.pack(zlib.crc32(identity))
    return (_HEADER + copy + copy + _PADDING).ljust(size, b"\0")


def parse(head: bytes) -> ReceivedProbe | None:
    """Parse the first bytes of a frame, also with a source route or a cell header before the identity. Return None for other
    frames, and for probes that are corrupted beyond recognition."""
    probe = _parse(head)
    if probe is None and (begin := head.find(_MAGIC_BYTES, _FIRST_COPY)) > _FIRST_COPY:
        return _parse(head[:_FIRST_COPY] + head[begin:])
    return probe


def _parse(head: bytes) -> ReceivedProbe | None:
    first, second = head[_FIRST_COPY:_SECOND_COPY], head[_SECOND_COPY : _SECOND_COPY + _COPY_SIZE]
    for copy in (first, second):
        if len(copy) < _COPY_SIZE or _CHECK.unpack_from(copy, _IDENTITY.size)[0] != zlib.crc32(copy[: _IDENTITY.size]):
            continue
        magic, run, path, kind, number = _IDENTITY.unpack_from(copy)
        if magic != _MAGIC:
            return None
        is_intact = (
            first == second and head[:_FIRST_COPY] == _HEADER and head[_SECOND_COPY + _COPY_SIZE : MIN_SIZE] == _PADDING
        )
        return ReceivedProbe(run, path, kind, number, is_intact)
    return None

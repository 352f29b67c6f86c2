"""A relay's counts in a memory-mapped file, from which its successor continues if it dies.

A count is a word that is stored when it changes, and survives the process in the page cache; it is lost only if the
machine goes down, and the cluster with it. A frame is counted before it leaves. So every frame that has arrived was
counted, as were those that a dying relay held, but not those in its sockets.

Layout: pairs of 64-bit words in native byte order: a hash that identifies the count (0: unused), then the count. Pairs
are not freed during the file's life; when all are used, further counts are in memory only.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

from testbed.fates.fate_counters import Cell, Tallies

ROOM: Final = 1 << 16
"""Number of pairs: 1 MiB, which is preallocated, so that no store hits a full file system."""

_PAIR: Final = 16  # bytes
_WHOLE: Final = 1  # lowest bit of the hash: set unless the count is part of another


class TallyFile(Tallies):
    """Counts in a file. Until `settle`, all counts of the previous process are continued; afterwards only partial ones
    are."""

    __slots__ = ("_left", "_room", "_used", "_words")

    def __init__(self, path: Path, room: int = ROOM) -> None:
        """room: number of pairs. Raises OSError, for example if the file system is full."""
        self._room = room
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, room * _PAIR)
            self._words = memoryview(mmap.mmap(descriptor, room * _PAIR)).cast("Q")
        finally:
            os.close(descriptor)
        self._left: dict[int, int] = {}  # counts not continued yet -> their places
        self._used = 0
        while self._used < room and (name := self._words[2 * self._used]):
            self._left[name] = 2 * self._used + 1
            self._used += 1

    @property
    def is_persistent(self) -> bool:
        return True

    def cell(self, key: tuple[object, ...], within: int | None = None) -> Cell:
        text = repr((key, within)).encode()
        name = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
        name = (name & ~_WHOLE) or 2 if within is not None else name | _WHOLE
        place = self._left.pop(name, None)
        if place is None:
            if self._used == self._room:
                return super().cell(key, within)
            place = 2 * self._used + 1
            self._used += 1
            self._words[place - 1] = name
        return self._words, place

    def settle(self) -> None:
        """Stop continuing counts of the previous process: later requests for the same key start from 0.

        Partial counts are still found, by the place of the count that they belong to, which is never assigned twice.
        """
        self._left = {name: place for name, place in self._left.items() if not name & _WHOLE}

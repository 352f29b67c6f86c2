"""A relay process's counts in a memory-mapped file, which its successor continues if the process dies.

A count is a word in the page cache, so it survives the process; it is lost only if the machine goes down, and the cluster
with it. A frame is counted before it leaves the relay. So the counts include every frame that has reached its receiver, and
those that were in flight in a relay process that died, but not those in its sockets' buffers.

Layout: pairs of 64-bit words in native byte order: a hash that identifies the count (0: unused), then the count. Pairs
are never freed; when all are used, further counts are in memory only.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

from testbed.fates.fate_counters import Cell, Tallies

CAPACITY: Final = 1 << 16
"""Default number of pairs: 1 MiB, preallocated, so that no store fails because the file system is full."""

_PAIR_SIZE: Final = 16  # bytes
_TOP_LEVEL: Final = 1  # lowest bit of the hash: set unless the count is a part of another count


class TallyFile(Tallies):
    """Counts in a file. Until `settle`, all counts of the previous process are continued; afterwards, only those that are
    parts of another count."""

    __slots__ = ("_capacity", "_previous", "_used", "_words")

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        """capacity: number of pairs. Raises OSError, for example if the file system is full."""
        self._capacity = capacity
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, capacity * _PAIR_SIZE)
            self._words = memoryview(mmap.mmap(descriptor, capacity * _PAIR_SIZE)).cast("Q")
        finally:
            os.close(descriptor)
        self._previous: dict[int, int] = {}  # of counts that are not continued yet: hash -> index of the count
        self._used = 0
        while self._used < capacity and (hash_ := self._words[2 * self._used]):
            self._previous[hash_] = 2 * self._used + 1
            self._used += 1

    @property
    def is_persistent(self) -> bool:
        return True

    def cell(self, key: tuple[object, ...], within: int | None = None) -> Cell:
        text = repr((key, within)).encode()
        hash_ = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
        hash_ = (hash_ & ~_TOP_LEVEL) or 2 if within is not None else hash_ | _TOP_LEVEL
        index = self._previous.pop(hash_, None)
        if index is None:
            if self._used == self._capacity:
                return super().cell(key, within)
            index = 2 * self._used + 1
            self._used += 1
            self._words[index - 1] = hash_
        return self._words, index

    def settle(self) -> None:
        """Stop continuing counts of the previous process: later cells with the same key start from 0.

        Parts of a count are still continued: the index of that count identifies them, and no index is assigned twice.
        """
        self._previous = {hash_: index for hash_, index in self._previous.items() if not hash_ & _TOP_LEVEL}

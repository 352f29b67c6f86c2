"""The firmware's timers as one table: what is waited for, and until when."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SLACK: Final = 64
"""Entries of the heap that need not be worth anything."""


class Timers(Generic[Key]):
    """At most one time for each key. Times are integer nanoseconds. What setting costs hardly grows with their number."""

    __slots__ = ("_entries", "_heap", "_set")

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[int, int, Key]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._set = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[Key, int]]:
        """Every key that waits, with its time."""
        return ((key, when) for key, (when, _, _) in self._entries.items())

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def set(self, key: Key, when: int) -> None:
        """Expire at that time, and at no other that was set before."""
        self._set = number = self._set + 1
        entries, heap = self._entries, self._heap
        entries[key] = entry = (when, number, key)
        heapq.heappush(heap, entry)
        if not number % _SLACK and len(heap) > 2 * len(entries) + _SLACK:
            # Most of it was cancelled or set anew: without this, a long time and much traffic would fill the memory.
            heap[:] = entries.values()
            heapq.heapify(heap)

    def cancel(self, key: Key) -> None:
        """Never expire; it need not run."""
        self._entries.pop(key, None)

    @property
    def deadline(self) -> int | None:
        """When the first one expires."""
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry[0]
            heapq.heappop(heap)
        return None

    def expired(self, now: int) -> list[Key]:
        """Those whose time has come, the earliest first, equal times in the order in which they were set; they are over."""
        out: list[Key] = []
        while (deadline := self.deadline) is not None and deadline <= now:
            key = heapq.heappop(self._heap)[2]
            del self._entries[key]
            out.append(key)
        return out

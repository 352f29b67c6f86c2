"""The firmware's timers: a table of deadlines by key."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SLACK: Final = 64
"""Stale heap entries, beyond as many as there are timers, before the heap is rebuilt."""


class Timers(Generic[Key]):
    """At most one deadline per key, in integer nanoseconds. The cost of setting a timer hardly grows with their number."""

    __slots__ = ("_entries", "_heap", "_set_count")

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[int, int, Key]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._set_count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[Key, int]]:
        """Yield every pending key with its deadline."""
        return ((key, deadline) for key, (deadline, _, _) in self._entries.items())

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def set(self, key: Key, deadline: int) -> None:
        """Set the key's deadline, replacing an earlier one."""
        self._set_count = number = self._set_count + 1
        entries, heap = self._entries, self._heap
        entries[key] = entry = (deadline, number, key)
        heapq.heappush(heap, entry)
        if not number % _SLACK and len(heap) > 2 * len(entries) + _SLACK:
            # Most entries are stale (cancelled or replaced), and would fill the memory in long runs with much traffic.
            heap[:] = entries.values()
            heapq.heapify(heap)

    def cancel(self, key: Key) -> None:
        """Cancel the key's deadline; the key need not be pending."""
        self._entries.pop(key, None)

    @property
    def deadline(self) -> int | None:
        """The earliest deadline; None without timers."""
        heap, entries = self._heap, self._entries
        while heap:
            deadline, number, key = heap[0]
            entry = entries.get(key)
            if entry is not None and entry[1] == number:
                return deadline
            heapq.heappop(heap)
        return None

    def expired(self, now: int) -> list[Key]:
        """Remove and return the keys whose deadline has passed, earliest first, with equal deadlines in the order of
        `set`."""
        keys: list[Key] = []
        while (deadline := self.deadline) is not None and deadline <= now:
            key = heapq.heappop(self._heap)[2]
            del self._entries[key]
            keys.append(key)
        return keys

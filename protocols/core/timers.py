"""The firmware's timers: a table of deadlines by key."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SLACK: Final = 64
"""The heap is rebuilt when its stale entries exceed the valid ones by more than this; checked at every 64th `set`."""


class Timers(Generic[Key]):
    """Deadlines in integer nanoseconds, at most one per key. Setting a timer costs O(log n) for n timers.

    deadline: the earliest one; None without timers.
    """

    __slots__ = ("_entries", "_heap", "_set_count", "deadline")

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[int, int, Key]] = {}
        self._heap: list[tuple[int, int, Key]] = []  # its first entry is valid
        self._set_count = 0
        self.deadline: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[Key, int]]:
        """Yield every key that has a deadline, with the deadline."""
        return ((key, deadline) for key, (deadline, _, _) in self._entries.items())

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def set(self, key: Key, deadline: int) -> None:
        """Set the key's deadline, replacing an earlier one."""
        self._set_count = number = self._set_count + 1
        entries, heap, earliest = self._entries, self._heap, self.deadline
        count = len(entries)
        entries[key] = entry = (deadline, number, key)
        heappush(heap, entry)
        if len(entries) == count:  # the key had a deadline, which may have been the earliest
            self._find_earliest()
        elif earliest is None or deadline < earliest:
            self.deadline = deadline
        if not number % _SLACK and len(heap) > 2 * len(entries) + _SLACK:
            # Most entries are stale (cancelled or replaced), and would fill the memory in long runs with much traffic.
            heap[:] = entries.values()
            heapify(heap)

    def cancel(self, key: Key) -> None:
        """Cancel the key's deadline, if it has one."""
        entry = self._entries.pop(key, None)
        if entry is not None and entry[0] == self.deadline:
            self._find_earliest()

    def expired(self, now: int) -> list[Key]:
        """Remove and return the keys whose deadline has passed, earliest first, with equal deadlines in the order of
        `set`."""
        keys: list[Key] = []
        while (deadline := self.deadline) is not None and deadline <= now:
            key = heappop(self._heap)[2]
            del self._entries[key]
            keys.append(key)
            self._find_earliest()
        return keys

    def _find_earliest(self) -> None:
        """Set `deadline` to the earliest one, after removing the stale entries at the top of the heap."""
        heap, entries = self._heap, self._entries
        while heap:
            deadline, number, key = heap[0]
            entry = entries.get(key)
            if entry is not None and entry[1] == number:
                self.deadline = deadline
                return
            heappop(heap)
        self.deadline = None

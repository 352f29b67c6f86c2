"""Events in a heap that an event loop and networks share, by time and then by the order in which they were scheduled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heappop
from typing import Any, Protocol


class HeapEvent(Protocol):
    """An event that can be cancelled, or moved to another time: only the entry with its present sequence number is valid."""

    __slots__ = ()

    @property
    def sequence(self) -> int:
        """Sequence number of the valid entry; 0: none."""
        ...

    def call(self, now: int, /) -> None:
        """Handle the event, which is due."""
        ...


HeapEntry = tuple[int, int, Callable[[Any], object] | None, Any]
"""Time, sequence number, callback and argument; without a callback the argument is a `HeapEvent`. Any: it is checked where
an entry is made that an argument fits its callback, which the type of a heap with many kinds of callbacks cannot."""


class Events:
    """Where channels put their events: a heap of their own, until they share another one. next_sequence: returns a new
    sequence number, greater than those before."""

    __slots__ = ("heap", "next_sequence")

    def __init__(self) -> None:
        self.heap: list[HeapEntry] = []
        self.next_sequence: Callable[[], int] = itertools.count(1).__next__

    def share(self, heap: list[HeapEntry], next_sequence: Callable[[], int]) -> None:
        """Put later events into another heap, whose owner calls them."""
        self.heap, self.next_sequence = heap, next_sequence

    def call_due(self, now: int) -> None:
        """Call the events that are due, at their times."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            when, sequence, callback, argument = heappop(heap)
            if callback is not None:
                callback(argument)
            else:
                event: HeapEvent = argument
                if event.sequence == sequence:
                    event.call(when)

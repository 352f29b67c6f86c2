"""Heap of an event queue's entries: a list with the functions of heapq. In the compiled build it is the heap of
`native_heap.c`, which compares the entries' times and sequence numbers as machine integers instead of objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

__all__ = ["Entry", "Heap", "heappop", "heappush"]

Entry = tuple[int, int, Callable[[Any], object] | None, Any]
"""Time, sequence number, callback and argument; without a callback the argument is a `ScheduledEvent`. The types are
Any since callbacks differ; `EventQueue.at` checks that an argument fits its callback."""

if TYPE_CHECKING:

    class Heap(list[Entry]):
        """Heap of entries, the first one at index 0. Only `heappush` and `heappop` may change it."""

else:
    Heap = list
    with contextlib.suppress(ImportError):
        from testbed.fabric import native_heap

        Heap, heappop, heappush = native_heap.Heap, native_heap.heappop, native_heap.heappush

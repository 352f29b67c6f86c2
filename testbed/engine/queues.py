"""Queues between tasks, with first-come-first-served waiting at both ends.

If a getter waits, an item goes from the putter directly to it, so that no other task can take the item in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from testbed.engine.waitables import Awaited

T = TypeVar("T")


class _Place(Generic[T]):
    """A task's place among those that wait at one end of a queue."""

    __slots__ = ("_callback", "_line", "_what", "done", "item")

    def __init__(self, line: deque[_Place[T]], what: str) -> None:
        self.done = False
        self.item: T
        self._line = line
        self._what = what
        self._callback: Callable[[object], object] | None = None
        line.append(self)

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        self._callback = callback

    def serve(self) -> None:
        self.done = True
        if self._callback is not None:
            self._callback(self)

    def leave(self) -> None:
        """Give up the place, if it has not been served."""
        if not self.done:
            self._line.remove(self)

    def __await__(self) -> Generator[Awaited, None, None]:
        yield self

    def __str__(self) -> str:
        return self._what


class Queue(Generic[T]):
    """A FIFO queue. capacity: the maximum of items; None: any number."""

    __slots__ = ("_getters", "_items", "_putters", "capacity", "name")

    def __init__(self, name: str, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"queue {name!r} cannot have a capacity of {capacity}: it is 1 or more")
        self.name = name
        self.capacity = capacity
        self._items: deque[T] = deque()
        self._getters: deque[_Place[T]] = deque()  # only while there is no item
        self._putters: deque[_Place[T]] = deque()  # only while there is no room

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: T) -> bool:
        """Put an item without waiting; False, and nothing has changed, when there is no room."""
        if self._getters:
            getter = self._getters.popleft()
            getter.item = item
            getter.serve()
            return True
        if self.capacity is not None and len(self._items) >= self.capacity:
            return False
        self._items.append(item)
        return True

    def take(self) -> T:
        """Get an item without waiting. IndexError when there is none."""
        item = self._items.popleft()
        if self._putters:
            putter = self._putters.popleft()
            self._items.append(putter.item)
            putter.serve()
        return item

    async def put(self, item: T) -> None:
        """Put an item, waiting until there is room."""
        if self.offer(item):
            return
        place = _Place(self._putters, f"room in queue {self.name!r}")
        place.item = item
        try:
            await place
        finally:
            place.leave()

    async def get(self) -> T:
        """Get an item, waiting for one. A task that is interrupted while it waits has taken none."""
        if self._items:
            return self.take()
        place: _Place[T] = _Place(self._getters, f"an item of queue {self.name!r}")
        try:
            await place
        finally:
            place.leave()
        return place.item

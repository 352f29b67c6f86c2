"""Queues between tasks, with first-come-first-served waiting at both ends.

If a getter waits, an item goes from the putter directly to it, so that no other task can take the item in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from testbed.engine.waitables import Awaited

T = TypeVar("T")


class _QueueWait(Awaited, Generic[T]):
    """A task's wait at one end of a queue: for an item, or for room for one."""

    __slots__ = ("_callback", "_description", "_waits", "done", "item")

    def __init__(self, waits: deque[_QueueWait[T]], description: str) -> None:
        """waits: all waits at this end. description: the awaited object in words, see `Awaited`."""
        self.done: bool = False
        self.item: T
        self._waits = waits
        self._description = description
        self._callback: Callable[[object], object] | None = None
        waits.append(self)

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        self._callback = callback

    def serve(self) -> None:
        """End the wait."""
        self.done = True
        if self._callback is not None:
            self._callback(self)

    def cancel(self) -> None:
        """Withdraw from the queue, unless the wait has been served."""
        if not self.done:
            self._waits.remove(self)

    def __await__(self) -> Generator[Awaited, None, None]:
        yield self

    def __str__(self) -> str:
        return self._description


class Queue(Generic[T]):
    """A FIFO queue. capacity: maximum number of items; None: unlimited."""

    __slots__ = ("_getters", "_items", "_putters", "capacity", "name")

    def __init__(self, name: str, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity of queue {name!r} must be 1 or more, got {capacity}")
        self.name = name
        self.capacity = capacity
        self._items: deque[T] = deque()
        self._getters: deque[_QueueWait[T]] = deque()  # empty unless the queue is empty
        self._putters: deque[_QueueWait[T]] = deque()  # empty unless the queue is full

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: T) -> bool:
        """Put an item without waiting; return False if the queue is full."""
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
        """Get an item without waiting. Raises IndexError if the queue is empty."""
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
        wait = _QueueWait(self._putters, f"room in queue {self.name!r}")
        wait.item = item
        try:
            await wait
        finally:
            wait.cancel()

    async def get(self) -> T:
        """Get an item, waiting until there is one. A task that is interrupted while it waits takes no item."""
        if self._items:
            return self.take()
        wait: _QueueWait[T] = _QueueWait(self._getters, f"an item of queue {self.name!r}")
        try:
            await wait
        finally:
            wait.cancel()
        return wait.item

"""Queue of outgoing items that wait for credits: descriptors, room in a window, or memory that a peer has granted.

Host libraries use this queue for sends that need a limited resource. It keeps the order, and sends in a single loop. A
send may complete at once, and its completion may return credits or queue the next item, which calls `advance` again.
The inner call returns, and the running loop continues, so that a long chain of such sends does not grow the stack.

    self._outgoing = OutgoingQueue(self._post)

    self._outgoing.put(message)      # a program sends
    self._outgoing.advance()         # credits have been returned
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")


class OutgoingQueue(Generic[Item]):
    """A queue of items, sent in order. items: those not completely sent; the owner may clear the queue, even during a
    send."""

    __slots__ = ("_is_advancing", "_send", "items")

    def __init__(self, send: Callable[[Item], bool]) -> None:
        """send: sends an item as far as the credits permit, and returns whether all of it is sent; if not, it is called
        again for the item."""
        self.items: Final[deque[Item]] = deque()
        self._send = send
        self._is_advancing = False

    def put(self, item: Item) -> None:
        """Queue an item, and send as far as the credits permit."""
        self.items.append(item)
        self.advance()

    def advance(self) -> None:
        """Send queued items as far as the credits permit."""
        if self._is_advancing:
            return
        self._is_advancing = True
        items = self.items
        try:
            while items:
                item = items[0]
                if not self._send(item):
                    break
                if items and items[0] is item:
                    items.popleft()
        finally:
            self._is_advancing = False

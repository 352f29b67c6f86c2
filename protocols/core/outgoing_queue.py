"""Outgoing items that wait for credits: descriptors, room in a window, or memory that a peer has granted.

Every host library has this queue in front of something of which there is only so much. It keeps the order, and has one loop:
a send may be complete at once, its completion may give credits back, or queue the next item, and both ask for a pass again,
while one is running. That one then goes on, so that a long chain of such sends does not grow the stack.

    self._outgoing = OutgoingQueue(self._post)

    self._outgoing.put(message)      # a program sends
    self._outgoing.advance()         # credits have come back
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")


class OutgoingQueue(Generic[Item]):
    """A queue of items, sent in order. items: those that are not completely sent; the owner may clear them, even while
    one is being sent."""

    __slots__ = ("_is_advancing", "_send", "items")

    def __init__(self, send: Callable[[Item], bool]) -> None:
        """send: sends an item, or as much of it as there are credits for, and returns whether that was the rest of it. It is
        called again for the same item otherwise."""
        self.items: Final[deque[Item]] = deque()
        self._send = send
        self._is_advancing = False

    def put(self, item: Item) -> None:
        """Queue an item, and send what the credits permit."""
        self.items.append(item)
        self.advance()

    def advance(self) -> None:
        """Send what the credits permit."""
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

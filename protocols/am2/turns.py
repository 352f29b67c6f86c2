"""Endpoint scheduling: the order in which messages of several endpoints get a resource that they wait for.

"Weighted round robin over resident endpoints": an endpoint has 2^k attempts before the next one's turn; those with
nothing to send are skipped (section "Endpoint scheduling"). So an endpoint waits for at most (endpoint frames - 1) x
2^k packets of others, whatever these do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Endpoint = TypeVar("Endpoint", bound=Hashable)


class Turns(Generic[Endpoint]):
    """Waiting slots by endpoint, each endpoint's in order."""

    __slots__ = ("_attempts", "_current", "_left", "waiting")

    def __init__(self, attempts: int) -> None:
        """attempts: 2^k."""
        self._attempts: Final = attempts
        self._current: Endpoint | None = None
        self._left = 0
        self.waiting: Final[dict[Endpoint, deque[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(self, endpoint: Endpoint, slot: int) -> None:
        """Append a slot to the endpoint's."""
        slots = self.waiting.get(endpoint)
        if slots is None:
            self.waiting[endpoint] = deque((slot,))
        else:
            slots.append(slot)

    def put_back(self, endpoint: Endpoint, slot: int) -> None:
        """Put back the slot taken last, since it is not finished: it stays the first of its endpoint, whose turn
        continues."""
        slots = self.waiting.get(endpoint)
        if slots is not None:
            slots.appendleft(slot)
            return
        rest = list(self.waiting.items())
        self.waiting.clear()
        self.waiting[endpoint] = deque((slot,))
        self.waiting.update(rest)

    def take(self) -> tuple[Endpoint, int]:
        """Take the next slot; there must be one."""
        waiting, current = self.waiting, self._current
        if current is None or not self._left or current not in waiting:
            if current is not None and current in waiting:
                waiting[current] = waiting.pop(current)  # behind all others
            self._current = current = next(iter(waiting))
            self._left = self._attempts
        self._left -= 1
        slots = waiting[current]
        slot = slots.popleft()
        if not slots:
            del waiting[current]
        return current, slot

    def drop(self, endpoint: Endpoint) -> None:
        """Remove all slots of an endpoint."""
        self.waiting.pop(endpoint, None)

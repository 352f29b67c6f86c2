"""Endpoint scheduling: the order in which waiting messages of several endpoints get a resource, such as a channel.

"Weighted round robin over resident endpoints": an endpoint has 2^k attempts before the next one's turn; endpoints with
nothing to send are skipped (section "Endpoint scheduling"). So an endpoint waits for at most (endpoint frames - 1) x
2^k packets of other endpoints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Endpoint = TypeVar("Endpoint", bound=Hashable)


class EndpointScheduler(Generic[Endpoint]):
    """Weighted round-robin scheduler of messages, identified by endpoint and slot. waiting_slots: slots by endpoint, in
    the order in which they were added. An instance is true if a slot waits."""

    __slots__ = ("_attempts", "_current", "_remaining_attempts", "waiting_slots")

    def __init__(self, attempts: int) -> None:
        """attempts: slots of one endpoint before the next endpoint's turn, 2^k."""
        self._attempts: Final = attempts
        self._current: Endpoint | None = None
        self._remaining_attempts = 0
        self.waiting_slots: Final[dict[Endpoint, deque[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting_slots)

    def add(self, endpoint: Endpoint, slot: int) -> None:
        """Add a slot after the waiting ones of its endpoint."""
        slots = self.waiting_slots.get(endpoint)
        if slots is None:
            self.waiting_slots[endpoint] = deque((slot,))
        else:
            slots.append(slot)

    def put_back(self, endpoint: Endpoint, slot: int) -> None:
        """Put back the slot that `take` returned last, since its message is not completely sent. The slot stays the
        first one of its endpoint, and the endpoint's turn continues."""
        slots = self.waiting_slots.get(endpoint)
        if slots is not None:
            slots.appendleft(slot)
            return
        later = list(self.waiting_slots.items())
        self.waiting_slots.clear()
        self.waiting_slots[endpoint] = deque((slot,))
        self.waiting_slots.update(later)

    def take(self) -> tuple[Endpoint, int]:
        """Remove the next slot and return it with its endpoint. A slot must be waiting."""
        waiting_slots, current = self.waiting_slots, self._current
        if current is None or not self._remaining_attempts or current not in waiting_slots:
            if current is not None and current in waiting_slots:
                waiting_slots[current] = waiting_slots.pop(current)  # now after all other endpoints
            self._current = current = next(iter(waiting_slots))
            self._remaining_attempts = self._attempts
        self._remaining_attempts -= 1
        slots = waiting_slots[current]
        slot = slots.popleft()
        if not slots:
            del waiting_slots[current]
        return current, slot

    def remove(self, endpoint: Endpoint) -> None:
        """Remove all slots of an endpoint."""
        self.waiting_slots.pop(endpoint, None)

"""Where long messages come in: a region of memory in slots, which a node hands out to those that have such a message for it.

AM-II's NIC writes the data of bulk messages into the segment of their endpoint. A receive's buffer is no part of it: the
handler copies, as AM-II copies once on each side.

What a peer has been handed out when it was lost is held back: its NIC may still be sending. It comes back when the peer says
that nothing is under way, or is another incarnation, from whose predecessor NICs take nothing any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

SLOT: Final = 65_536
"""Bytes (ours): long enough to be worth its request and answer."""
SLOTS: Final = 16
FOR_ONE: Final = 2
"""Slots for one message: one is on its way while the other is asked for anew."""


class Staging:
    """memory: None before the first slot is handed out."""

    __slots__ = ("_free", "_held", "memory")

    def __init__(self) -> None:
        self.memory: bytearray | None = None
        self._free = deque(range(SLOTS))
        self._held: dict[int, list[int]] = {}  # by peer

    def take(self, size: int) -> tuple[int, ...]:
        """Slots for a message of so many bytes; none if none is free."""
        if self.memory is None:
            self.memory = bytearray(SLOTS * SLOT)
        free = self._free
        if not free and sum(map(len, self._held.values())) == SLOTS:
            self.release(next(iter(self._held)))  # nobody will give any back: the one that was lost first
        return tuple([free.popleft() for _ in range(min(FOR_ONE, -(-size // SLOT), len(free)))])

    def give_back(self, slots: Iterable[int]) -> None:
        """Nothing goes there any more."""
        self._free.extend(slots)

    def hold(self, peer: int, slots: Iterable[int]) -> None:
        """That peer is lost, which was to fill them."""
        held = list(slots)
        if held:
            self._held.setdefault(peer, []).extend(held)

    def release(self, peer: int) -> None:
        """Nothing of that peer's is under way any more."""
        self._free.extend(self._held.pop(peer, ()))

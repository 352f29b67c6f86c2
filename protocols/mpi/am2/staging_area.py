"""The staging region for long messages: memory in slots, which a node grants to senders of such messages.

AM-II's NIC writes the data of bulk messages into the segment of their endpoint. A receive's buffer is not part of it:
the handler copies, as AM-II copies once on each side.

Slots granted to a peer that is then lost are held back, since its NIC may still be sending. They are free again when
the peer says that nothing is in flight, or is another incarnation: NICs accept nothing from the former one any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

SLOT: Final = 65_536
"""Bytes (ours): long enough to be worth a request and an answer."""
SLOTS: Final = 16
FOR_ONE: Final = 2
"""Slots for one message: one is being filled while the other is being granted again."""


class Staging:
    """Slots of one node. memory: None before the first slot is granted."""

    __slots__ = ("_free", "_held", "memory")

    def __init__(self) -> None:
        self.memory: bytearray | None = None
        self._free = deque(range(SLOTS))
        self._held: dict[int, list[int]] = {}  # by peer

    def take(self, size: int) -> tuple[int, ...]:
        """Take slots for a message of that many bytes; none if no slot is free."""
        if self.memory is None:
            self.memory = bytearray(SLOTS * SLOT)
        free = self._free
        if not free and sum(map(len, self._held.values())) == SLOTS:
            self.release(next(iter(self._held)))  # all slots are held back: free those of the first lost peer
        return tuple([free.popleft() for _ in range(min(FOR_ONE, -(-size // SLOT), len(free)))])

    def give_back(self, slots: Iterable[int]) -> None:
        """Free slots that no sender fills any more."""
        self._free.extend(slots)

    def hold(self, peer: int, slots: Iterable[int]) -> None:
        """Hold back slots granted to a lost peer."""
        held = list(slots)
        if held:
            self._held.setdefault(peer, []).extend(held)

    def release(self, peer: int) -> None:
        """Free the slots held back for a peer of which nothing is in flight any more."""
        self._free.extend(self._held.pop(peer, ()))

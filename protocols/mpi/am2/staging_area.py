"""The staging region: slots of memory that a node grants to the senders of long messages.

AM-II's NIC writes the data of bulk messages to the segment of their endpoint. A receive's buffer is not in that segment,
so the handler copies the data to it: AM-II copies once on each side.

Slots granted to a peer whose session ends are held back, since its NIC may still be sending. They are free again when the
peer reports that nothing is in flight, or has a new incarnation, since NICs then accept nothing from the former one. If
all slots are held back, those of the peer lost first are freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

SLOT_SIZE: Final = 65_536
"""Size of a slot in bytes: large enough to be worth a request and an answer. Our choice."""
SLOTS: Final = 16
"""Number of slots of a node. Our choice."""
MAX_SLOTS_PER_MESSAGE: Final = 2
"""Maximum slots for a message: one is filled while the other is granted again."""


class StagingRegion:
    """Staging region of one node. memory: None before the first slot is taken."""

    __slots__ = ("_free", "_held_back", "memory")

    def __init__(self) -> None:
        self.memory: bytearray | None = None
        self._free = deque(range(SLOTS))
        self._held_back: dict[int, list[int]] = {}  # slots by peer

    def take(self, size: int) -> tuple[int, ...]:
        """Take up to MAX_SLOTS_PER_MESSAGE slots for a message of `size` bytes. Returns an empty tuple if no slot is
        free."""
        if self.memory is None:
            self.memory = bytearray(SLOTS * SLOT_SIZE)
        free = self._free
        if not free and sum(map(len, self._held_back.values())) == SLOTS:
            self.release(next(iter(self._held_back)))  # all slots are held back: free those of the peer lost first
        return tuple([free.popleft() for _ in range(min(MAX_SLOTS_PER_MESSAGE, -(-size // SLOT_SIZE), len(free)))])

    def free(self, slots: Iterable[int]) -> None:
        """Free slots that no sender will fill any more."""
        self._free.extend(slots)

    def hold_back(self, peer: int, slots: Iterable[int]) -> None:
        """Hold back slots granted to a lost peer."""
        slot_list = list(slots)
        if slot_list:
            self._held_back.setdefault(peer, []).extend(slot_list)

    def release(self, peer: int) -> None:
        """Free the slots held back for a peer from which nothing is in flight any more."""
        self._free.extend(self._held_back.pop(peer, ()))

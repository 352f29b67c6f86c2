"""Announcements of a new incarnation: a NIC notifies its peers that it has restarted, until each shows that it knows.

Without announcements, a peer learns of a restart when it writes to the former incarnation or receives a frame from the
new one; a peer that only waits to receive would wait forever. Announcements are not acknowledged. Each is repeated,
with a doubled interval, until a frame addressed to the new incarnation arrives, or until _MAX_ANNOUNCEMENTS have been
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from protocols.core.timers import Timers

Peer = TypeVar("Peer", bound=Hashable)

_MAX_ANNOUNCEMENTS: Final = 9
"""Announcements to one peer. If half of all frames are lost, one peer in five hundred receives none."""

_AT_ONCE: Final = 0
"""A time in the past: the timer expires at the next tick."""


class Announcements(Generic[Peer]):
    """The peers that have not yet shown that they know this incarnation. A peer is a node's number, or what a protocol
    has instead."""

    __slots__ = ("_announce", "_silent", "timers")

    def __init__(self, announce: Callable[[Peer, int], object]) -> None:
        """announce: sends an announcement to a peer, given its incarnation."""
        self._announce = announce
        self._silent: dict[Peer, tuple[int, int]] = {}  # by peer: its incarnation then, and the announcements sent
        self.timers: Final[Timers[Peer]] = Timers()

    def begin(self, peer: Peer, incarnation: int, when: int = _AT_ONCE) -> None:
        """Announce to a peer at the next tick, or at a later time, and repeat. incarnation: the peer's, as the former
        incarnation of this NIC knew it. The new incarnation of this NIC need not know it: if both NICs restart and this one
        writes to the peer, it must not learn the peer's old incarnation from here."""
        self._silent[peer] = incarnation, 0
        self.timers.set(peer, when)

    def stop(self, peer: Peer) -> None:
        """Stop announcing to a peer that knows the new incarnation."""
        if self._silent.pop(peer, None) is not None:
            self.timers.cancel(peer)

    def left(self) -> dict[Peer, int]:
        """Return the peers that have not shown that they know, with their incarnations."""
        return {peer: incarnation for peer, (incarnation, _) in self._silent.items()}

    def on_timer(self, now: int, timeout: int, longest_timeout: int) -> None:
        """Send the announcements that are due. timeout, longest_timeout: interval before the second announcement, and
        upper limit of all later intervals, in nanoseconds."""
        for peer in self.timers.expired(now):
            incarnation, attempts = self._silent[peer]
            if attempts == _MAX_ANNOUNCEMENTS:
                del self._silent[peer]
                continue
            self._silent[peer] = incarnation, attempts + 1
            self._announce(peer, incarnation)
            self.timers.set(peer, now + min(timeout << attempts, longest_timeout))

"""Announcements of a new incarnation: a NIC notifies its peers that it has restarted, until each peer uses the incarnation.

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

_IMMEDIATELY: Final = 0
"""A time in the past: the timer expires at the next tick."""


class Announcements(Generic[Peer]):
    """The peers that do not use this incarnation yet. A peer is a node's number, or the protocol's equivalent."""

    __slots__ = ("_announce", "_pending", "timers")

    def __init__(self, announce: Callable[[Peer, int], object]) -> None:
        """announce: sends an announcement to a peer, given its incarnation."""
        self._announce = announce
        self._pending: dict[Peer, tuple[int, int]] = {}  # by peer: its incarnation then, and the announcements sent
        self.timers: Final[Timers[Peer]] = Timers()

    def begin(self, peer: Peer, incarnation: int, when: int = _IMMEDIATELY) -> None:
        """Announce to a peer at the next tick, or at a later time, and repeat. incarnation: the peer's, as the former
        incarnation of this NIC knew it. The new incarnation of this NIC need not know it: if both NICs restart and this one
        writes to the peer, it must not learn the peer's old incarnation from here."""
        self._pending[peer] = incarnation, 0
        self.timers.set(peer, when)

    def stop(self, peer: Peer) -> None:
        """Stop announcing to a peer that knows the new incarnation."""
        if self._pending.pop(peer, None) is not None:
            self.timers.cancel(peer)

    def left(self) -> dict[Peer, int]:
        """Return the peers that do not use the new incarnation yet, with their incarnations."""
        return {peer: incarnation for peer, (incarnation, _) in self._pending.items()}

    def on_timer(self, now: int, timeout: int, longest_timeout: int) -> None:
        """Send the announcements that are due. timeout, longest_timeout: interval before the second announcement, and
        upper limit of all later intervals, in nanoseconds."""
        for peer in self.timers.expired(now):
            incarnation, attempts = self._pending[peer]
            if attempts == _MAX_ANNOUNCEMENTS:
                del self._pending[peer]
                continue
            self._pending[peer] = incarnation, attempts + 1
            self._announce(peer, incarnation)
            self.timers.set(peer, now + min(timeout << attempts, longest_timeout))

"""Announcements of a new incarnation: a restarted NIC notifies each peer until the peer uses the new incarnation.

Without announcements, a peer learns of a restart when it writes to the former incarnation or receives a frame from the
new one; a peer that only waits to receive would wait forever. Announcements are not acknowledged. They are repeated,
with doubled intervals, until a frame addressed to the new incarnation arrives, or _MAX_ANNOUNCEMENTS have been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from protocols.core.timers import Timers

Peer = TypeVar("Peer", bound=Hashable)

_MAX_ANNOUNCEMENTS: Final = 9
"""Maximum announcements to one peer. If half of all frames are lost, one peer in five hundred receives none."""

_IMMEDIATELY: Final = 0
"""A time in the past: the timer expires at the next `on_timer`."""


class Announcements(Generic[Peer]):
    """Announcements to the peers that do not use this NIC's incarnation yet. `Peer` is a node's number, or the
    protocol's equivalent."""

    __slots__ = ("_announce", "_pending", "timers")

    def __init__(self, announce: Callable[[Peer, int], object]) -> None:
        """announce: sends an announcement, given a peer and its incarnation."""
        self._announce = announce
        self._pending: dict[
            Peer, tuple[int, int]
        ] = {}  # by peer: its incarnation, and the number of announcements sent
        self.timers: Final[Timers[Peer]] = Timers()

    def begin(self, peer: Peer, incarnation: int, when: int = _IMMEDIATELY) -> None:
        """Begin to announce to a peer at the next `on_timer`, or at a later time. incarnation: the peer's, as known to
        the former incarnation of this NIC. It is for announcements only: if both NICs have restarted, this NIC must not
        use the peer's old incarnation for other frames."""
        self._pending[peer] = incarnation, 0
        self.timers.set(peer, when)

    def stop(self, peer: Peer) -> None:
        """Stop announcing to a peer, which uses the new incarnation."""
        if self._pending.pop(peer, None) is not None:
            self.timers.cancel(peer)

    def pending(self) -> dict[Peer, int]:
        """Return the peers that do not use the new incarnation yet, with their incarnations."""
        return {peer: incarnation for peer, (incarnation, _) in self._pending.items()}

    def on_timer(self, now: int, timeout: int, longest_timeout: int) -> None:
        """Send the announcements that are due. timeout: nanoseconds between the first two announcements to a peer.
        longest_timeout: upper limit of the later intervals."""
        for peer in self.timers.expired(now):
            incarnation, attempts = self._pending[peer]
            if attempts == _MAX_ANNOUNCEMENTS:
                del self._pending[peer]
                continue
            self._pending[peer] = incarnation, attempts + 1
            self._announce(peer, incarnation)
            self.timers.set(peer, now + min(timeout << attempts, longest_timeout))

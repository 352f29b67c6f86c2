"""Telling peers that another incarnation is here now, as long as they do not show that they know.

It is said by what a NIC says to whoever writes to its former self, which nobody acknowledges: so it is said again, each time
after twice as long, until a frame comes that is for the new incarnation, or it has been said often enough. A peer that has
missed all of it hears it as soon as it sends anything.
"""

from __future__ import annotations

from typing import Final

from protocols.core.timers import Timers
from protocols.emp.card import Card
from protocols.emp.transfers import Peer

_MOST: Final = 9
"""Times. Where half of all frames are lost, one peer in five hundred hears none."""

_AT_ONCE: Final = 0
"""A time that has come."""


class Announcements:
    """Of one NIC, to those of its former self's peers that have not shown yet that they know."""

    __slots__ = ("_card", "_said", "timers")

    def __init__(self, card: Card) -> None:
        self._card = card
        self._said: dict[int, int] = {}  # by peer, how often
        self.timers: Timers[int] = Timers()

    def begin(self, peer: Peer) -> None:
        """Its incarnation is known. What a peer is told first it is told at the next tick."""
        self._said[peer.number] = 0
        self.timers.set(peer.number, _AT_ONCE)

    def heard(self, peer: Peer) -> None:
        """It knows."""
        if self._said.pop(peer.number, None) is not None:
            self.timers.cancel(peer.number)

    def left(self) -> list[int]:
        """The numbers of the peers that have not shown it."""
        return list(self._said)

    def tick(self, now: int) -> None:
        card, settings = self._card, self._card.settings
        for number in self.timers.expired(now):
            said = self._said[number]
            if said == _MOST:
                del self._said[number]
                continue
            self._said[number] = said + 1
            card.refuse_frame(card.peer(number), 0, settings.unit, 0, 0)
            self.timers.set(number, now + min(settings.timeout << said, settings.longest_timeout))

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
        self._said: dict[int, tuple[int, int]] = {}  # by peer: its incarnation then, and how often
        self.timers: Timers[int] = Timers()

    def begin(self, peer: int, incarnation: int) -> None:
        """incarnation: the peer's, as the former self knew it. The firmware need not know it: who starts anew and writes to
        a peer that has done so, too, is not to hear of that. What a peer is told first it is told at the next tick."""
        self._said[peer] = incarnation, 0
        self.timers.set(peer, _AT_ONCE)

    def heard(self, peer: Peer) -> None:
        """It knows."""
        if self._said.pop(peer.number, None) is not None:
            self.timers.cancel(peer.number)

    def left(self) -> dict[int, int]:
        """The peers that have not shown it, with their incarnations."""
        return {number: incarnation for number, (incarnation, _) in self._said.items()}

    def tick(self, now: int) -> None:
        card, settings = self._card, self._card.settings
        for number in self.timers.expired(now):
            incarnation, said = self._said[number]
            if said == _MOST:
                del self._said[number]
                continue
            self._said[number] = incarnation, said + 1
            card.announce(card.peer(number), incarnation)
            self.timers.set(number, now + min(settings.timeout << said, settings.longest_timeout))

"""What other NICs have not heard: that an endpoint is gone which they have asked something.

That is sent like any message, and given up like any: else it would keep its channel for ever. But who has asked waits, and
may itself have nothing to say. So what was given up is kept, and told again when a frame comes from there, or a route leads
there again. Besides, one word is sent from time to time, ever more seldom: both might be waiting for the other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocols.am2.messages import Message
from protocols.am2.peers import Peer
from protocols.am2.sender import Sender
from protocols.am2.settings import SECOND

_FIRST_PAUSE: Final = 1 * SECOND
"""After giving up. Twice as long each time: the silence then lasts at most twice as long as its cause."""
_LAST_PAUSE: Final = _FIRST_PAUSE << 16
"""Eighteen hours. Who has been silent for longer is told when he is heard of."""


class Silence:
    """A peer's. words: by the endpoints' numbers, of which there are only so many. next_at: when one is tried; None: one is
    under way, or none will be. pause: nanoseconds before it."""

    __slots__ = ("next_at", "pause", "words")

    def __init__(self) -> None:
        self.words: Final[dict[int, Message]] = {}
        self.next_at: int | None = None
        self.pause = _FIRST_PAUSE


class Untold:
    """silences: of the peers that have not heard something."""

    __slots__ = ("_sender", "silences")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.silences: Final[dict[Peer, Silence]] = {}

    @property
    def deadline(self) -> int | None:
        times = [silence.next_at for silence in self.silences.values()]
        return min((when for when in times if when is not None), default=None)

    def keep(self, now: int, words: Iterable[Message]) -> None:
        """They were given up."""
        for word in words:
            silence = self.silences.get(word.peer)
            if silence is None:
                silence = self.silences[word.peer] = Silence()
            silence.words[word.endpoint.number] = word
            if silence.next_at is None and silence.pause <= _LAST_PAUSE:
                silence.next_at = now + silence.pause

    def tick(self, now: int) -> None:
        """One word to each whose time it is."""
        for silence in self.silences.values():
            if silence.next_at is not None and silence.next_at <= now:
                silence.next_at = None
                silence.pause *= 2
                word = silence.words.pop(next(iter(silence.words)))
                self._sender.tell(now, word.anew(), once=True)

    def heard(self, now: int, peer: Peer) -> None:
        """A frame of the incarnation to which they were sent has come, or its route has: it is told all."""
        if peer.route is not None and (silence := self.silences.pop(peer, None)) is not None:
            for word in silence.words.values():
                self._sender.tell(now, word.anew())

    def mapped(self, now: int) -> None:
        """There are new routes."""
        for peer in list(self.silences):
            self.heard(now, peer)

    def forget(self, peer: Peer) -> None:
        """It has started again: nobody waits there any more."""
        self.silences.pop(peer, None)

    def waiting(self) -> Iterable[str]:
        """A sentence for every peer that is silent."""
        for peer, silence in self.silences.items():
            if silence.words:
                yield f"node {peer.number} does not answer, and has not heard that of ours are gone: {[*silence.words]}"

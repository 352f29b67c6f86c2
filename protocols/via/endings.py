"""Ends of connections and requests, of which peers are told until they answer.

Frames are lost, and a peer that only receives would never notice that nobody is connected to it any more. So the step that
ends a connection is resent, as a request is, until the peer says that it has no such connection (any more), until it has
restarted, or for as long as the provider waits for an acknowledgement (`Settings.give_up`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from protocols.core.peers import Peer
from protocols.via.card import Card, Vi
from protocols.via.codec import STEP_DISCONNECT

ENDINGS: Final = 1 << 32
"""The timer of an ending has its session as key, plus this."""
_MAX_DOUBLINGS: Final = 30


@dataclass(slots=True)
class Ending:
    """The end of a connection or request of which the peer has not said that it knows. vi, session: this side's end.
    peer_vi, peer_session: the other one, 0 if it is not known. cause: 0 if the program has ended it, otherwise a bit of a
    descriptor's status. began: when it was told first; None until then."""

    peer: Peer
    vi: int
    session: int
    peer_vi: int
    peer_session: int
    cause: int
    began: int | None = None
    tries: int = 0


class Endings:
    """The ends of one NIC's connections."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._open: dict[int, Ending] = {}
        self._new: list[Ending] = []

    @property
    def has_new(self) -> bool:
        """Whether `begin` has something to do."""
        return bool(self._new)

    def add(self, vi: Vi, cause: int) -> None:
        """Tell the peer of a VI's connection or request that it has ended."""
        assert vi.peer is not None
        ending = Ending(vi.peer, vi.number, vi.session, vi.peer_vi, vi.peer_session, cause)
        self._open[vi.session] = ending
        self._new.append(ending)
        self._tell(ending)

    def begin(self, now: int) -> None:
        """Start the timers of new ones."""
        for ending in self._new:
            ending.began = now
            if self._open.get(ending.session) is ending:
                self._set_timer(now, ending)
        self._new.clear()

    def on_timer(self, now: int, session: int) -> None:
        """Tell a peer once more."""
        ending = self._open[session]
        give_up = self._card.settings.give_up
        if give_up and ending.began is not None and now - ending.began >= give_up:
            del self._open[session]
            return
        ending.tries += 1
        self._card.counters.endings_resent += 1
        self._tell(ending)
        self._set_timer(now, ending)

    def repeat(self, session: int) -> bool:
        """Tell the peer once more, which has sent a frame to an ended connection. False: there is no such ending."""
        ending = self._open.get(session)
        if ending is None:
            return False
        self._tell(ending)
        return True

    def answered(self, peer: Peer, session: int) -> bool:
        """A peer has no such connection. False: it was not told of such an ending."""
        ending = self._open.get(session)
        if ending is None or ending.peer is not peer:
            return False
        self._forget(session)
        return True

    def restarting(self, peer: Peer) -> None:
        """A peer has restarted: it knows of no connection."""
        for session in [session for session, ending in self._open.items() if ending.peer is peer]:
            self._forget(session)

    def _forget(self, session: int) -> None:
        del self._open[session]
        self._card.timers.cancel(ENDINGS + session)

    def _tell(self, ending: Ending) -> None:
        card, peer = self._card, ending.peer
        peer.send_later(
            partial(
                card.codec.pack_connection, peer.address, card.address, 0, card.incarnation, peer.incarnation,
                ending.peer_vi, ending.peer_session, ending.vi, ending.session, 0, 0, ending.cause, 0, 0,
                STEP_DISCONNECT, 0, 0, b"",
            )
        )  # fmt: skip

    def _set_timer(self, now: int, ending: Ending) -> None:
        settings = self._card.settings
        delay = min(settings.timeout << min(ending.tries, _MAX_DOUBLINGS), settings.longest_timeout)
        self._card.timers.set(ENDINGS + ending.session, now + delay)

"""Ends of connections and requests: disconnect frames, resent until the peer confirms them.

A disconnect frame may be lost, and a peer that only receives would never detect that. So it is resent, as a connection
request is, until the peer answers that it has no such connection, until the peer restarts, or until `Settings.give_up`
has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from protocols.core.peers import Peer
from protocols.via.card import Card, Vi
from protocols.via.codec import STEP_DISCONNECT

DISCONNECT_TIMERS: Final = 1 << 32
"""First timer key of ends of connections; the session is added."""
_MAX_DOUBLINGS: Final = 30


@dataclass(slots=True)
class PendingDisconnect:
    """The end of a connection or request that the peer has not confirmed. vi, session: local end. peer_vi,
    peer_session: remote end, 0 if unknown. cause: 0 if the program disconnected, otherwise a bit of a descriptor's
    status. start_time: when the first disconnect frame was sent; None until then."""

    peer: Peer
    vi: int
    session: int
    peer_vi: int
    peer_session: int
    cause: int
    start_time: int | None = None
    retries: int = 0


class PendingDisconnects:
    """The ends of one NIC's connections that are not confirmed yet. new: entries without a timer yet, see `start_timers`."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._pending: dict[int, PendingDisconnect] = {}
        self.new: Final[list[PendingDisconnect]] = []

    def add(self, vi: Vi, cause: int) -> None:
        """Notify the peer of a VI that its connection or request has ended."""
        assert vi.peer is not None
        disconnect = PendingDisconnect(vi.peer, vi.number, vi.session, vi.peer_vi, vi.peer_session, cause)
        self._pending[vi.session] = disconnect
        self.new.append(disconnect)
        self._send(disconnect)

    def start_timers(self, now: int) -> None:
        """Start the timers of new entries."""
        for disconnect in self.new:
            disconnect.start_time = now
            if self._pending.get(disconnect.session) is disconnect:
                self._set_timer(now, disconnect)
        self.new.clear()

    def on_timer(self, now: int, session: int) -> None:
        """Resend a disconnect frame."""
        disconnect = self._pending[session]
        give_up = self._card.settings.give_up
        if give_up and disconnect.start_time is not None and now - disconnect.start_time >= give_up:
            del self._pending[session]
            return
        disconnect.retries += 1
        self._card.counters.endings_resent += 1
        self._send(disconnect)
        self._set_timer(now, disconnect)

    def repeat(self, session: int) -> bool:
        """Resend the disconnect frame to a peer that still uses the connection. Returns False for an unknown session."""
        disconnect = self._pending.get(session)
        if disconnect is None:
            return False
        self._send(disconnect)
        return True

    def on_confirmation(self, peer: Peer, session: int) -> bool:
        """Handle a peer's answer that it has no such connection. Returns False if no disconnect frame was sent to the
        peer for this session."""
        disconnect = self._pending.get(session)
        if disconnect is None or disconnect.peer is not peer:
            return False
        self._remove(session)
        return True

    def on_peer_restarting(self, peer: Peer) -> None:
        """Remove the entries of a peer that has restarted."""
        for session in [session for session, disconnect in self._pending.items() if disconnect.peer is peer]:
            self._remove(session)

    def _remove(self, session: int) -> None:
        del self._pending[session]
        self._card.timers.cancel(DISCONNECT_TIMERS + session)

    def _send(self, disconnect: PendingDisconnect) -> None:
        card, peer = self._card, disconnect.peer
        peer.send_later(
            partial(
                card.codec.pack_connection, peer.address, card.address, 0, card.incarnation, peer.incarnation,
                disconnect.peer_vi, disconnect.peer_session, disconnect.vi, disconnect.session, 0, 0, disconnect.cause, 0, 0,
                STEP_DISCONNECT, 0, 0, b"",
            )
        )  # fmt: skip

    def _set_timer(self, now: int, disconnect: PendingDisconnect) -> None:
        settings = self._card.settings
        delay = min(settings.timeout << min(disconnect.retries, _MAX_DOUBLINGS), settings.longest_timeout)
        self._card.timers.set(DISCONNECT_TIMERS + disconnect.session, now + delay)

"""Connections of VIs: client and server, or peer to peer (section 2.4 of the specification; VipConnect* of its library).

A request is resent until the peer answers or the request expires. Each side numbers its end of a connection (session),
and a frame contains the session of its receiver, so that frames of an earlier connection are not mistaken for frames of
the current one. A VI that accepts a request is connected at once. If the answer is lost, the peer resends the request,
and the answer is repeated. The first answer is final: a copy of a refused request, delayed in a queue, must not be
accepted when a server waits later, since the peer has abandoned the request. The end of a connection, and the withdrawal
of a request, are resent until the peer answers (`pending_disconnects`).

A peer-to-peer request is queued at the NIC until a VI requests a connection to that peer with the same discriminator. The
NIC with the lower number pairs the requests; the other one waits for its answer. Otherwise two NICs whose requests cross
could pair several requests of one discriminator in different ways, each in the order in which it has received them. A
client's request fails (VIP_NO_MATCH) if no server is waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from protocols.core.peers import Peer
from protocols.via.card import Card, Vi
from protocols.via.codec import (
    STEP_ACCEPT,
    STEP_NO_MATCH,
    STEP_PEER_REQUEST,
    STEP_REJECT,
    STEP_REQUEST,
)
from protocols.via.pending_disconnects import PendingDisconnects
from protocols.via.states import CONNECTED, OPEN, PENDING
from protocols.via.vip_descriptors import Command, Op
from protocols.via.vipl_names import STATUS_ERRORS, AsyncError, Done, Result

_MAX_DOUBLINGS: Final = 30
_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 1 << 31


@dataclass(slots=True)
class Request:
    """A connection request from a peer. step: STEP_REQUEST or STEP_PEER_REQUEST. vi, session: the peer's VI, and the number
    of the connection there. is_reported: VipConnectWait has returned the request."""

    peer: Peer
    step: int
    vi: int
    session: int
    reliability: int
    max_transfer: int
    discriminator: bytes
    is_reported: bool = False


class Connections:
    """The connections of one NIC. pending_disconnects: ends of connections that peers have not confirmed."""

    def __init__(self, card: Card) -> None:
        self.pending_disconnects: Final = PendingDisconnects(card)
        self._card = card
        self._requests: dict[int, Request] = {}  # queued requests by number
        # Session of the last answered request, and the answer, by node and VI.
        self._answered: dict[tuple[int, int], tuple[int, int]] = {}
        self._last_number = 0
        self._waits: list[tuple[int, bytes]] = []  # pending VipConnectWait commands: slot, discriminator

    # Commands of the host.

    def connect(self, now: int, slot: int, vi: Vi, command: Command) -> None:
        """VipConnectRequest and VipConnectPeerRequest: request a connection to a peer."""
        card = self._card
        peer = card.peers.peer(command.number)
        is_peer = command.op == Op.CONNECT_PEER
        vi.reset(peer, 0, 0)
        vi.session = card.next_session()
        vi.connect_slot, vi.discriminator = slot, command.name
        vi.step = STEP_PEER_REQUEST if is_peer else STEP_REQUEST
        vi.expires = now + command.address if command.address else 0
        is_pairing = is_peer and self._is_pairing_with(peer)
        matching = next(
            (number for number, request in self._requests.items() if is_pairing and _matches(vi, request)), None
        )
        if matching is not None:
            self._join(vi, "connect to a peer that has requested it", self._requests.pop(matching), matching)
            return
        card.step_vi(vi, "connect")
        self._send_request(vi)
        self._set_timer(now, vi)

    def wait(self, now: int, slot: int, command: Command) -> None:
        """VipConnectWait: complete this command with the next request that has this discriminator."""
        discriminator = command.name
        self._waits.append((slot, discriminator))
        if command.address:
            self._card.timers.set(~slot, now + command.address)
        for number, request in self._requests.items():
            if not request.is_reported and request.discriminator == discriminator:
                self._report(number, request)
                return

    def expire(self, slot: int) -> None:
        """Time out a command."""
        self._waits = [wait for wait in self._waits if wait[0] != slot]
        self._card.expire(slot)

    def close(self) -> None:
        """VipCloseNic: end connections, and complete pending commands."""
        card = self._card
        for vi in card.vis.values():
            self.disconnect(vi)
        for slot, _ in self._waits:
            card.timers.cancel(~slot)
            card.answer(slot, Result.INVALID_STATE, card.slots.read_command(slot))
        self._waits.clear()
        for request in self._requests.values():
            self._refuse(request, STEP_REJECT)
        self._requests.clear()

    def accept(self, slot: int, vi: Vi, command: Command) -> None:
        """VipConnectAccept: connect a VI to a request."""
        request = self._requests.get(command.value)
        if request is None or request.step == STEP_PEER_REQUEST:
            self._card.answer(slot, Result.INVALID_PARAMETER, command)
            return
        if request.reliability != vi.reliability:
            self._card.answer(slot, Result.INVALID_RELIABILITY_LEVEL, command)
            return
        if request.max_transfer != vi.max_transfer:
            self._card.answer(slot, Result.INVALID_MTU, command)
            return
        del self._requests[command.value]
        vi.session = self._card.next_session()
        vi.connect_slot = slot
        self._join(vi, "accept", request, command.value)

    def reject(self, slot: int, command: Command) -> None:
        """VipConnectReject: refuse a request."""
        request = self._requests.pop(command.value, None)
        if request is not None:
            self._refuse(request, STEP_REJECT)
        self._card.answer(slot, Result.SUCCESS if request else Result.INVALID_PARAMETER, command)

    def disconnect(self, vi: Vi) -> None:
        """VipDisconnect: flush the VI's descriptors, and make it idle."""
        card = self._card
        if vi.state == PENDING:
            self.pending_disconnects.add(vi, 0)
            self._fail(vi, "disconnect", Result.REJECT)
        else:
            if vi.state == CONNECTED:
                self.pending_disconnects.add(vi, 0)
            card.step_vi(vi, "disconnect")
        card.flush(vi)
        vi.reset(None, 0, 0)

    # Frames and timers.

    def on_request(
        self, peer: Peer, step: int, vi: int, session: int, reliability: int, max_transfer: int, discriminator: bytes
    ) -> None:
        """Handle a peer's connection request."""
        card = self._card
        request = Request(peer, step, vi, session, reliability, max_transfer, discriminator)
        for local in card.vis.values():
            if local.state == CONNECTED and (local.peer, local.peer_vi, local.peer_session) == (peer, vi, session):
                card.step_vi(local, "repeated request")
                self._send_step(local, STEP_ACCEPT)
                return
        answered = self._answered.get((peer.number, vi))
        if answered is not None and _is_copy(session, answered[0]):
            if answered[0] == session and answered[1] != STEP_ACCEPT:
                self._send_refusal(peer, vi, session, answered[1])
            return
        for local in card.vis.values() if self._is_pairing_with(peer) else ():
            is_same_vi = peer.number == card.number and local.number == vi
            if local.state == PENDING and not is_same_vi and _matches(local, request):
                self._join(local, "matching peer request", request)
                return
        for number, earlier in list(self._requests.items()):
            if (earlier.peer, earlier.vi) == (peer, vi):
                if _is_copy(session, earlier.session):
                    return
                del self._requests[number]  # replaced by a request of a new session
        is_awaited = any(discriminator == awaited for _, awaited in self._waits)
        is_full = len(self._requests) >= card.settings.requests
        if (step == STEP_REQUEST and not is_awaited) or is_full or card.state != OPEN:
            self._refuse(request, STEP_NO_MATCH)
            return
        self._last_number += 1
        self._requests[self._last_number] = request
        if is_awaited:
            self._report(self._last_number, request)

    def on_answer(self, vi: Vi, step: int, from_vi: int, from_session: int) -> None:
        """Handle the peer's answer to the request of this VI."""
        if vi.state == PENDING:
            if step == STEP_ACCEPT:
                vi.peer_vi, vi.peer_session = from_vi, from_session
                self._complete_connecting(vi, "accepted", self._take_request(vi))
            elif step in (STEP_REJECT, STEP_NO_MATCH):
                self._fail(vi, "refused", Result.REJECT if step == STEP_REJECT else Result.NO_MATCH)

    def on_disconnect(self, peer: Peer, vi: int, session: int, from_vi: int, from_session: int, cause: int) -> None:
        """Handle the end of a connection, or the withdrawal of a request, by a peer (from_vi, from_session). vi,
        session: the local end, 0 if unknown to the peer. cause: see `PendingDisconnect`."""
        for local in self._card.vis.values():
            if local.peer is not peer:
                continue
            if local.state == CONNECTED and (local.peer_vi, local.peer_session) == (from_vi, from_session):
                event = "error at the peer" if cause else "peer disconnected"
                self.lose(local, event, AsyncError.CONN_LOST, cause & STATUS_ERRORS, peer_cause=None)
            elif local.state == PENDING and (local.number, local.session) == (vi, session):
                self._fail(local, "refused", Result.REJECT)  # the frame that accepted it was lost
        for number, request in list(self._requests.items()):
            if (request.peer, request.vi, request.session) == (peer, from_vi, from_session):
                del self._requests[number]
                self._record_answer(request, STEP_REJECT)

    def on_timer(self, now: int, vi: Vi) -> None:
        """Resend a request, or fail it."""
        if vi.expires and now >= vi.expires:
            self.pending_disconnects.add(vi, 0)
            self._fail(vi, "expired", Result.TIMEOUT)
            return
        self._card.step_vi(vi, "time-out")
        vi.retries += 1
        self._send_request(vi)
        self._set_timer(now, vi)

    def lose(
        self,
        vi: Vi,
        event: str,
        error: AsyncError,
        oldest_status: int = 0,
        peer_cause: int | None = Done.TRANSPORT_ERROR,
    ) -> None:
        """End a connection because of an error, and flush the VI's descriptors. event: event of the state table. error:
        reported to the host. oldest_status: as for `Card.flush`. peer_cause: cause to send to the peer; None: the peer is
        not notified."""
        if vi.state != CONNECTED:
            return
        card = self._card
        card.step_vi(vi, event)
        if peer_cause is not None:
            self.pending_disconnects.add(vi, peer_cause)
        card.flush(vi, oldest_status)
        vi.unacknowledged.clear()
        card.report(error, vi.number)

    def on_peer_restarting(self, peer: Peer) -> None:
        """Drop the connections and requests of a peer that has restarted."""
        for vi in list(self._card.vis.values()):
            if vi.peer is peer:
                self.lose(vi, "peer restarted", AsyncError.CONN_LOST, peer_cause=None)
        for number in [number for number, request in self._requests.items() if request.peer is peer]:
            del self._requests[number]
        for key in [key for key in self._answered if key[0] == peer.number]:
            del self._answered[key]
        self.pending_disconnects.on_peer_restarting(peer)

    def on_peer_introduced(self, peer: Peer) -> None:
        """Resend pending requests to a peer whose incarnation is now known."""
        for vi in self._card.vis.values():
            if vi.peer is peer and vi.state == PENDING:
                self._send_request(vi)

    def pending_work(self) -> list[str]:
        """Describe each unanswered request."""
        return [
            f"VI {vi.number} requests a connection to node {vi.peer.number}"
            for vi in self._card.vis.values()
            if vi.state == PENDING and vi.peer is not None
        ]

    def _is_pairing_with(self, peer: Peer) -> bool:
        """Whether this NIC, not the peer, pairs the peer-to-peer requests of the two NICs."""
        return self._card.number <= peer.number

    def _take_request(self, vi: Vi) -> int:
        """Remove the queued request of the peer's VI that has accepted this VI's request, and ignore later copies of it.
        Return its number, or 0 if none was queued."""
        assert vi.peer is not None
        key = vi.peer, vi.peer_vi, vi.peer_session
        self._store_answer((vi.peer.number, vi.peer_vi), vi.peer_session, STEP_ACCEPT)
        for number, request in self._requests.items():
            if (request.peer, request.vi, request.session) == key:
                del self._requests[number]
                return number
        return 0

    def _join(self, vi: Vi, event: str, request: Request, number: int = 0) -> None:
        """Connect a VI to a request, and accept it. number: number of a queued request."""
        vi.reset(request.peer, request.vi, request.session)
        self._record_answer(request, STEP_ACCEPT)
        self._send_step(vi, STEP_ACCEPT)
        self._complete_connecting(vi, event, number)

    def _complete_connecting(self, vi: Vi, event: str, number: int = 0) -> None:
        self._card.step_vi(vi, event)
        vi.retries = 0
        self._end_request(vi, Result.SUCCESS, number)

    def _fail(self, vi: Vi, event: str, result: Result) -> None:
        self._card.step_vi(vi, event)
        self._end_request(vi, result)

    def _end_request(self, vi: Vi, result: Result, number: int = 0) -> None:
        self._card.timers.cancel(vi.number << 1)
        slot, vi.connect_slot = vi.connect_slot, -1
        self._card.answer(slot, result, Command(Op.CONNECT, vi=vi.number, value=number))

    def _send_request(self, vi: Vi) -> None:
        self._send_step(vi, vi.step, vi.discriminator)

    def _send_step(self, vi: Vi, step: int, discriminator: bytes = b"") -> None:
        """Send a connection frame to the remote end of a VI."""
        card, peer = self._card, vi.peer
        assert peer is not None
        peer.send_later(
            partial(
                card.codec.pack_connection, peer.address, card.address, 0, card.incarnation, peer.incarnation,
                vi.peer_vi, vi.peer_session, vi.number, vi.session, 0, 0, 0, 0, 0, step, vi.reliability,
                vi.max_transfer, discriminator,
            )
        )  # fmt: skip

    def _refuse(self, request: Request, step: int) -> None:
        """Refuse a request. step: STEP_REJECT or STEP_NO_MATCH."""
        self._record_answer(request, step)
        self._send_refusal(request.peer, request.vi, request.session, step)

    def _record_answer(self, request: Request, step: int) -> None:
        """Record the answer to a request, for copies of the request."""
        self._store_answer((request.peer.number, request.vi), request.session, step)

    def _store_answer(self, key: tuple[int, int], session: int, step: int) -> None:
        answered = self._answered
        answered.pop(key, None)
        answered[key] = session, step
        if len(answered) > self._card.settings.requests:
            del answered[next(iter(answered))]

    def _send_refusal(self, peer: Peer, vi: int, session: int, step: int) -> None:
        """Send a negative answer to a request."""
        card = self._card
        peer.send_later(
            partial(
                card.codec.pack_connection, peer.address, card.address, 0, card.incarnation, peer.incarnation, vi,
                session, 0, 0, 0, 0, 0, 0, 0, step, 0, 0, b"",
            )
        )  # fmt: skip

    def _report(self, number: int, request: Request) -> None:
        """Complete the oldest VipConnectWait command with the request's discriminator."""
        index = next(index for index, (_, awaited) in enumerate(self._waits) if awaited == request.discriminator)
        slot, _ = self._waits.pop(index)
        self._card.timers.cancel(~slot)
        request.is_reported = True
        self._card.answer(
            slot,
            Result.SUCCESS,
            Command(
                Op.WAIT,
                number=request.peer.number,
                ptag=request.reliability,
                size=request.max_transfer,
                value=number,
                vi=request.step == STEP_PEER_REQUEST,
                name=request.discriminator,
            ),
        )

    def _set_timer(self, now: int, vi: Vi) -> None:
        settings = self._card.settings
        delay = min(settings.timeout << min(vi.retries, _MAX_DOUBLINGS), settings.longest_timeout)
        when = now + delay
        self._card.timers.set(vi.number << 1, min(when, vi.expires) if vi.expires else when)


def _is_copy(session: int, latest: int) -> bool:
    """Whether a request of a VI is a copy of its latest request, or of an earlier one: sessions of a NIC ascend."""
    return (latest - session & _MASK) < _HALF


def _matches(vi: Vi, request: Request) -> bool:
    """Whether a VI's peer-to-peer request matches the request of a peer."""
    return (
        vi.step == request.step == STEP_PEER_REQUEST
        and vi.peer is request.peer
        and (vi.discriminator, vi.reliability, vi.max_transfer)
        == (request.discriminator, request.reliability, request.max_transfer)
    )

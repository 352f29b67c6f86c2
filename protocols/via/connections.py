"""Connections of VIs: client and server, or peer to peer (section 2.4 of the specification; VipConnect* of its library).

A request is resent until the other side answers, or until it expires. Either side numbers its end of the connection
(session), and a frame names the number of its receiver's end, so no frame of a former connection is taken for one of
this. Whoever accepts is connected at once; if its answer is lost, the request comes again and is answered again, as is
one that was rejected. The peer is told of the end of a connection, and of a request that is withdrawn, until it answers
(`endings`).

A peer's request waits at the NIC until a VI asks for that peer with the same discriminator. A client's request finds a
waiting server or fails (VIP_NO_MATCH).
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
from protocols.via.endings import Endings
from protocols.via.states import CONNECTED, OPEN, PENDING
from protocols.via.vip_descriptors import Command, Op
from protocols.via.vipl_names import STATUS_ERRORS, AsyncError, Done, Result

_MAX_DOUBLINGS: Final = 30


@dataclass(slots=True)
class Request:
    """A connection request from a peer. is_shown: the host knows of it."""

    peer: Peer
    step: int
    vi: int
    session: int
    reliability: int
    max_transfer: int
    name: bytes
    is_shown: bool = False


class Connections:
    """The connections of one NIC. endings: of which peers have not said that they know."""

    def __init__(self, card: Card) -> None:
        self.endings: Final = Endings(card)
        self._card = card
        self._requests: dict[int, Request] = {}
        self._rejected: dict[tuple[int, int], int] = {}  # by node and VI: the session of its last request, if rejected
        self._next = 0
        self._waits: list[tuple[int, bytes]] = []  # commands that wait for a request: slot, discriminator

    # By the host.

    def connect(self, now: int, slot: int, vi: Vi, command: Command) -> None:
        """VipConnectRequest and VipConnectPeerRequest: ask a peer for a connection."""
        card = self._card
        peer = card.peers.peer(command.number)
        is_peer = command.op == Op.CONNECT_PEER
        vi.begin(peer, 0, 0)
        vi.session = card.next_session()
        vi.connecting, vi.name = slot, command.name
        vi.step = STEP_PEER_REQUEST if is_peer else STEP_REQUEST
        vi.expires = now + command.address if command.address else 0
        found = next((number for number, request in self._requests.items() if is_peer and _fits(vi, request)), None)
        if found is not None:
            self._join(vi, "peer request came before", self._requests.pop(found), found)
            return
        card.step_vi(vi, "connect")
        self._ask(vi)
        self._set_timer(now, vi)

    def wait(self, now: int, slot: int, command: Command) -> None:
        """VipConnectWait: answer this command with the next request that has this discriminator."""
        name = command.name
        self._waits.append((slot, name))
        if command.address:
            self._card.timers.set(~slot, now + command.address)
        for number, request in self._requests.items():
            if not request.is_shown and request.name == name:
                self._show(number, request)
                return

    def expire(self, slot: int) -> None:
        """A command has waited for a request for as long as it may."""
        self._waits = [wait for wait in self._waits if wait[0] != slot]
        self._card.expire(slot)

    def close(self) -> None:
        """VipCloseNic: end connections, and answer what waits."""
        card = self._card
        for vi in card.vis.values():
            self.disconnect(vi)
        for slot, _ in self._waits:
            card.timers.cancel(~slot)
            card.answer(slot, Result.INVALID_STATE, card.slots.read_command(slot))
        self._waits.clear()
        for request in self._requests.values():
            self._reject(request)
        self._requests.clear()

    def accept(self, slot: int, vi: Vi, command: Command) -> None:
        """VipConnectAccept: connect a VI to a request."""
        request = self._requests.get(command.value)
        if request is None:
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
        vi.connecting = slot
        self._join(vi, "accept", request, command.value)

    def reject(self, slot: int, command: Command) -> None:
        """VipConnectReject."""
        request = self._requests.pop(command.value, None)
        if request is not None:
            self._reject(request)
        self._card.answer(slot, Result.SUCCESS if request else Result.INVALID_PARAMETER, command)

    def disconnect(self, vi: Vi) -> None:
        """VipDisconnect: return the VI's descriptors, and make it idle."""
        card = self._card
        if vi.state == PENDING:
            self.endings.add(vi, 0)
            self._fail(vi, "disconnect", Result.REJECT)
        else:
            if vi.state == CONNECTED:
                self.endings.add(vi, 0)
            card.step_vi(vi, "disconnect")
        card.flush(vi)
        vi.begin(None, 0, 0)

    # From the wire, and by the clock.

    def requested(
        self, peer: Peer, step: int, vi: int, session: int, reliability: int, max_transfer: int, name: bytes
    ) -> None:
        """Handle a peer's request."""
        card = self._card
        request = Request(peer, step, vi, session, reliability, max_transfer, name)
        for own in card.vis.values():
            if own.state == CONNECTED and (own.peer, own.peer_vi, own.peer_session) == (peer, vi, session):
                card.step_vi(own, "request again")
                self._tell(own, STEP_ACCEPT)
                return
            is_own = peer.number == card.number and own.number == vi
            if own.state == PENDING and not is_own and _fits(own, request):
                self._join(own, "matching peer request", request)
                return
        for number, known in list(self._requests.items()):
            if (known.peer, known.vi) == (peer, vi):
                if known.session == session:
                    return
                del self._requests[number]  # that VI asks again, in a new session
        if self._rejected.get((peer.number, vi)) == session:
            self._answer(peer, vi, session, STEP_REJECT)
            return
        is_awaited = any(name == awaited for _, awaited in self._waits)
        is_full = len(self._requests) >= card.settings.requests
        if (step == STEP_REQUEST and not is_awaited) or is_full or card.state != OPEN:
            self._answer(peer, vi, session, STEP_NO_MATCH)
            return
        self._next += 1
        self._requests[self._next] = request
        if is_awaited:
            self._show(self._next, request)

    def answered(self, vi: Vi, step: int, from_vi: int, from_session: int) -> None:
        """Handle a step of the peer for this VI, whose session it names."""
        if vi.state == PENDING:
            if step == STEP_ACCEPT:
                vi.peer_vi, vi.peer_session = from_vi, from_session
                self._connected(vi, "accepted")
            elif step in (STEP_REJECT, STEP_NO_MATCH):
                self._fail(vi, "refused", Result.REJECT if step == STEP_REJECT else Result.NO_MATCH)

    def ended(self, peer: Peer, vi: int, session: int, from_vi: int, from_session: int, cause: int) -> None:
        """A peer has ended its end of a connection (from_vi, from_session), or withdrawn that request. vi, session: the end
        here, if the peer knows it. cause: as of an `Ending`."""
        for own in self._card.vis.values():
            if own.peer is not peer:
                continue
            if own.state == CONNECTED and (own.peer_vi, own.peer_session) == (from_vi, from_session):
                event = "error at the peer" if cause else "peer disconnected"
                self.lose(own, event, AsyncError.CONN_LOST, cause & STATUS_ERRORS, told=None)
            elif own.state == PENDING and (own.number, own.session) == (vi, session):
                self._fail(own, "refused", Result.REJECT)  # it was accepted, and that was lost
        for number, request in list(self._requests.items()):
            if (request.peer, request.vi, request.session) == (peer, from_vi, from_session):
                del self._requests[number]

    def on_timer(self, now: int, vi: Vi) -> None:
        """Resend a request, or fail it."""
        if vi.expires and now >= vi.expires:
            self.endings.add(vi, 0)
            self._fail(vi, "expired", Result.TIMEOUT)
            return
        self._card.step_vi(vi, "time-out")
        vi.tries += 1
        self._ask(vi)
        self._set_timer(now, vi)

    def lose(
        self,
        vi: Vi,
        event: str,
        error: AsyncError,
        head: int = 0,
        told: Done | None = Done.TRANSPORT_ERROR,
    ) -> None:
        """End a connection because of an error: the VI's descriptors are returned. event: of the state table. head: as for
        `Card.flush`. told: the cause, for the peer; None: it knows."""
        if vi.state != CONNECTED:
            return
        card = self._card
        card.step_vi(vi, event)
        if told is not None:
            self.endings.add(vi, told)
        card.flush(vi, head)
        vi.unacknowledged.clear()
        card.report(error, vi.number)

    def restarting(self, peer: Peer) -> None:
        """A peer has restarted: its connections are lost, and its requests void."""
        for vi in list(self._card.vis.values()):
            if vi.peer is peer:
                self.lose(vi, "peer restarted", AsyncError.CONN_LOST, told=None)
        for number in [number for number, request in self._requests.items() if request.peer is peer]:
            del self._requests[number]
        for key in [key for key in self._rejected if key[0] == peer.number]:
            del self._rejected[key]
        self.endings.restarting(peer)

    def introduced(self, peer: Peer) -> None:
        """A peer's incarnation is known: requests that it has not accepted are sent again."""
        for vi in self._card.vis.values():
            if vi.peer is peer and vi.state == PENDING:
                self._ask(vi)

    def waiting(self) -> list[str]:
        """Return a sentence for each request that has no answer."""
        return [
            f"VI {vi.number} asks node {vi.peer.number} for a connection"
            for vi in self._card.vis.values()
            if vi.state == PENDING and vi.peer is not None
        ]

    def _join(self, vi: Vi, event: str, request: Request, number: int = 0) -> None:
        """Connect a VI to a request, and accept it. number: the request's, if it has waited."""
        vi.begin(request.peer, request.vi, request.session)
        self._tell(vi, STEP_ACCEPT)
        self._connected(vi, event, number)

    def _connected(self, vi: Vi, event: str, number: int = 0) -> None:
        self._card.step_vi(vi, event)
        vi.tries = 0
        self._end_request(vi, Result.SUCCESS, number)

    def _fail(self, vi: Vi, event: str, result: Result) -> None:
        self._card.step_vi(vi, event)
        self._end_request(vi, result)

    def _end_request(self, vi: Vi, result: Result, number: int = 0) -> None:
        self._card.timers.cancel(vi.number << 1)
        slot, vi.connecting = vi.connecting, -1
        self._card.answer(slot, result, Command(Op.CONNECT, vi=vi.number, value=number))

    def _ask(self, vi: Vi) -> None:
        self._tell(vi, vi.step, vi.name)

    def _tell(self, vi: Vi, step: int, name: bytes = b"") -> None:
        """Send a step to the other end of a VI."""
        card, peer = self._card, vi.peer
        assert peer is not None
        peer.send_later(
            partial(
                card.codec.pack_connection, peer.address, card.address, 0, card.incarnation, peer.incarnation,
                vi.peer_vi, vi.peer_session, vi.number, vi.session, 0, 0, 0, 0, 0, step, vi.reliability,
                vi.max_transfer, name,
            )
        )  # fmt: skip

    def _reject(self, request: Request) -> None:
        """Refuse a request, also when it comes again."""
        peer, rejected = request.peer, self._rejected
        rejected.pop((peer.number, request.vi), None)
        rejected[peer.number, request.vi] = request.session
        if len(rejected) > self._card.settings.requests:
            del rejected[next(iter(rejected))]
        self._answer(peer, request.vi, request.session, STEP_REJECT)

    def _answer(self, peer: Peer, vi: int, session: int, step: int) -> None:
        """Refuse a request."""
        card = self._card
        peer.send_later(
            partial(
                card.codec.pack_connection, peer.address, card.address, 0, card.incarnation, peer.incarnation, vi,
                session, 0, 0, 0, 0, 0, 0, 0, step, 0, 0, b"",
            )
        )  # fmt: skip

    def _show(self, number: int, request: Request) -> None:
        """Answer the oldest command that waits for such a request."""
        place = next(place for place, (_, name) in enumerate(self._waits) if name == request.name)
        slot, _ = self._waits.pop(place)
        self._card.timers.cancel(~slot)
        request.is_shown = True
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
                name=request.name,
            ),
        )

    def _set_timer(self, now: int, vi: Vi) -> None:
        settings = self._card.settings
        delay = min(settings.timeout << min(vi.tries, _MAX_DOUBLINGS), settings.longest_timeout)
        when = now + delay
        self._card.timers.set(vi.number << 1, min(when, vi.expires) if vi.expires else when)


def _fits(vi: Vi, request: Request) -> bool:
    """Whether a VI's peer request and a peer's match."""
    return (
        vi.step == request.step == STEP_PEER_REQUEST
        and vi.peer is request.peer
        and (vi.name, vi.reliability, vi.max_transfer) == (request.name, request.reliability, request.max_transfer)
    )

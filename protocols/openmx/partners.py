"""A partner: an endpoint that an endpoint talks to, with a connection, and the reliable order of messages both ways.

Messages are numbered with 14 bits, and two bits that tell sessions apart; a connection begins a new one. Acknowledgements
stand in messages of the other direction, or after a tick, or after some messages, in frames of their own. What is not
acknowledged is sent again. Messages that come too early are kept.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from protocols.core.completion import Completion
from protocols.openmx import states
from protocols.openmx.codec import TYPE_MEDIUM
from protocols.openmx.endpoint_memory import Command, Event, Op
from protocols.openmx.mx_names import (
    EARLY,
    MAX_UNACKED,
    SEQNUM,
    SEQNUM_BITS,
    SESSIONS,
    Status,
    distance,
    seqnum_after,
)
from protocols.openmx.mx_requests import Incoming, Outgoing

if TYPE_CHECKING:
    from protocols.openmx.endpoint import Endpoint

_RESENT: Final = 16
"""Messages, the oldest, that are sent again in one tick: most often the others have come, and only their
acknowledgement waits for the missing one. Ours."""
_HALF: Final = 1 << 31
_HALF_REQUESTS: Final = 1 << 7
_WORD: Final = 0xFFFF_FFFF


class Partner:
    """An endpoint as another one knows it; its address for programs (mx_endpoint_addr_t).

    node, index: the node's number and the endpoint's. session: the partner's, 0 if unknown. context: the program's own
    (mx_set_endpoint_addr_context). is_near: it is on the same node.
    """

    __slots__ = (
        "_acknum", "_connect_seqnum", "_early", "_endpoint", "_frames", "_heard_acknum", "_heard_request", "_is_asked",
        "_key", "_next_match", "_next_send", "_partials", "_queue", "_tick", "_tries", "_unacked",
        "_unused", "_used",
        "connected", "context", "index", "is_near", "node", "owed", "session", "state",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, node: int, index: int, is_near: bool) -> None:
        self.node: Final = node
        self.index: Final = index
        self.is_near: Final = is_near
        self.context: object = None
        self.session = 0
        self.state = states.PARTNER.initial
        self.connected: Completion[Status] | None = None
        self.owed = 0
        """Messages received and not acknowledged."""
        self._endpoint = endpoint
        self._key = 0
        self._connect_seqnum = 0
        self._tick = 0  # of the last connection request
        self._tries = 0  # that the oldest message, or the connection request, was sent again
        self._queue: deque[Outgoing] = deque()  # not sent yet
        self._unacked: deque[Outgoing] = deque()
        self._frames = 0  # of the unacknowledged messages
        self._next_send = 0
        self._unused = 0  # the number before the session's first message
        # Number of the next message to match. An endpoint that is opened again begins with another session, since messages
        # and acknowledgements of the former may still come.
        self._next_match = (endpoint.session % SESSIONS) << SEQNUM_BITS | endpoint.settings.first_seqnum
        self._partials: dict[int, Incoming] = {}  # messages with fragments to come, oldest first
        self._early: dict[int, list[tuple[Event, bytes]]] = {}
        self._acknum = 0
        self._heard_acknum = 0
        self._used = 0, 0  # the partner's session and its number of the last messages to it
        self._is_asked = False  # the partner's last request has made this connection
        self._heard_request = 0, 0  # session and number of the partner's last connection request

    def __repr__(self) -> str:
        return f"<endpoint {self.index} of node {self.node}>"

    @property
    def is_connected(self) -> bool:
        return self.state == states.CONNECTED

    @property
    def is_active(self) -> bool:
        """Whether ticks concern it."""
        return bool(self.owed or self._unacked) or self.state == states.CONNECTING

    def waiting(self) -> list[str]:
        """Return a sentence about what it has not acknowledged."""
        if self.state == states.CONNECTING:
            return [f"a connection to endpoint {self.index} of node {self.node}"]
        count = len(self._unacked)
        return [f"acknowledgements of {count} messages to endpoint {self.index} of node {self.node}"] if count else []

    # Connection.

    def connect(self, key: int) -> Completion[Status]:
        """Connect, unless it is connected; the result is done with the outcome."""
        if self.connected is None:
            self.connected = Completion("a connection to endpoint %s of node %s", self.index, self.node)
        done = self.connected
        self._key = key
        if self.state == states.CONNECTED:
            self._connected(Status.SUCCESS)
        elif self.state == states.UNCONNECTED:
            self._step("connect")
            self._tries = 0
            self._begin_asking()
        return done

    def disconnect(self) -> None:
        """End the connection: what is under way fails (mx_disconnect)."""
        if self.state != states.UNCONNECTED:
            self.lose("disconnect", Status.ENDPOINT_CLOSED)

    def receive_request(self, event: Event) -> None:
        """Handle the partner's request, and answer it."""
        heard_session, heard = self._heard_request
        if event.session == heard_session and 0 < (heard - event.number) & 0xFF < _HALF_REQUESTS:
            self._endpoint.counters.old_session += 1
            return
        is_over = (event.session, event.number) == self._heard_request or (
            event.session, event.seqnum >> SEQNUM_BITS
        ) == self._used  # fmt: skip
        if self.state != states.CONNECTED and is_over:
            # We have answered it, or were connected beside it, and ended that connection: the partner, which may not know
            # that, must begin another one.
            self._endpoint.counters.old_session += 1
            self.connect(self._key)
            return
        is_same = (
            event.session == self.session
            and event.seqnum >> SEQNUM_BITS == self._next_send >> SEQNUM_BITS
            and (not self._is_asked or event.number == heard)
        )
        self._heard_request = event.session, event.number
        if self.state == states.CONNECTED and is_same:
            self._step("request again")
        else:
            if self.state == states.CONNECTED:
                self.lose("request of a new session", Status.BAD_SESSION)
                self._begin_receiving()
            else:
                if self.state == states.UNCONNECTED:
                    self._begin_receiving()
                self._step("request")
            self.session = event.session
            self._is_asked = True
            self._begin_sending(event.seqnum)
        self._endpoint.command(
            Op.CONNECT, self, flag=1, session=event.session, word=self._endpoint.session, seqnum=self._next_match,
            number=event.number,
        )  # fmt: skip
        self._connected(Status.SUCCESS)

    def receive_answer(self, event: Event) -> None:
        """Handle the answer to our request."""
        if (
            self.state != states.CONNECTING
            or event.session != self._endpoint.session
            or event.number != self._connect_seqnum
        ):
            self._endpoint.counters.old_session += 1
        elif event.turn:
            self.lose("refused", Status.BAD_KEY)
        elif (event.word, event.seqnum >> SEQNUM_BITS) == self._used:
            # We have answered the partner's request and sent messages, which may still come, with this session's numbers.
            self._step("answer with a used session")
            self._begin_asking()
        else:
            self._step("answer")
            self.session = event.word
            self._is_asked = False
            self._begin_sending(event.seqnum)
            self._connected(Status.SUCCESS)

    def receive_nack(self, event: Event) -> None:
        """Handle the refusal of a message or of a connection request by the partner's driver, or of no message: then the
        partner's host has died."""
        status = _REFUSALS.get(event.flag, Status.ENDPOINT_CLOSED)
        if self.state == states.CONNECTING:
            if event.seqnum == self._next_match:
                self.lose("refused", status)
        elif self.state == states.CONNECTED and (
            event.seqnum == self._unused or event.seqnum in [out.seqnum for out in self._unacked]
        ):
            self.lose("refused", status)

    def lose(self, event: str, status: Status) -> None:
        """End the connection: fail what is under way."""
        self._step(event)
        unacked, queue = self._unacked, self._queue
        self._unacked, self._queue, self._frames, self.owed = deque(), deque(), 0, 0
        partials, self._partials, self._early = self._partials, {}, {}
        self._endpoint.forget_partner(self, [*unacked, *queue], list(partials.values()), status)
        self._connected(status)

    def _begin_asking(self) -> None:
        """Send a request for another connection."""
        self._connect_seqnum = (self._connect_seqnum + 1) & 0xFF
        self.session = 0
        self._begin_receiving()
        self._ask()

    def _ask(self) -> None:
        endpoint = self._endpoint
        self._tick = endpoint.ticks
        endpoint.command(
            Op.CONNECT, self, session=endpoint.session, word=self._key, seqnum=self._next_match,
            number=self._connect_seqnum,
        )  # fmt: skip
        endpoint.arm(self)

    def _connected(self, status: Status) -> None:
        done, self.connected = self.connected, None
        if done is not None:
            done.complete(status)
        self._pump()

    def _begin_receiving(self) -> None:
        """Begin a session of messages to us."""
        session = ((self._next_match >> SEQNUM_BITS) + 1) % SESSIONS
        self._next_match = session << SEQNUM_BITS | self._endpoint.settings.first_seqnum
        self._heard_acknum = 0
        self.owed = 0

    def _begin_sending(self, seqnum: int) -> None:
        """Begin a session of messages to the partner."""
        self._used = self.session, seqnum >> SEQNUM_BITS
        self._next_send = seqnum
        self._unused = seqnum_after(seqnum, -1)
        self._tries = 0
        self._acknum = 0

    def _step(self, event: str) -> None:
        row = states.PARTNER.row(self.state, event)
        self.state = row.next_state
        self._endpoint.counters.add(row.counters)

    # To the partner.

    def submit(self, outgoing: Outgoing) -> None:
        """Send a message, after the earlier ones, as soon as it may be sent."""
        self._queue.append(outgoing)
        if self.state == states.UNCONNECTED:
            self.connect(self._key)
        else:
            self._pump()
            if self._queue:
                self._endpoint.counters.throttled += 1

    def _pump(self) -> None:
        queue, unacked, most = self._queue, self._unacked, self._endpoint.settings.unacked
        while queue and self.state == states.CONNECTED:
            if unacked and (self._frames + queue[0].frames > most or len(unacked) >= MAX_UNACKED):
                return
            outgoing = queue.popleft()
            outgoing.seqnum = self._next_send
            self._next_send = outgoing.seqnum & ~SEQNUM | (outgoing.seqnum + 1) & SEQNUM
            self._frames += outgoing.frames
            unacked.append(outgoing)
            self._transmit(outgoing)
            self._endpoint.has_sent(outgoing)

    def _transmit(self, outgoing: Outgoing) -> None:
        endpoint = self._endpoint
        outgoing.sent = endpoint.ticks
        self.owed = 0
        endpoint.write(
            Command(
                outgoing.op, endpoint.index, self.index, 0, self.node, outgoing.seqnum, self._ack(), outgoing.number,
                outgoing.turn, self.session, 0, 0, outgoing.match_info, outgoing.length, outgoing.address,
            ),
            outgoing.data,
        )  # fmt: skip
        endpoint.arm(self)

    def acknowledge(self) -> None:
        """Acknowledge what has come in a frame of its own."""
        self.owed = 0
        self._acknum = (self._acknum + 1) & _WORD
        self._endpoint.command(
            Op.ACK, self, ack=self._ack(), seqnum=self._next_send, session=self.session, word=self._acknum
        )

    def flush(self) -> None:
        """Acknowledge at once what has come."""
        if self.owed and self.state == states.CONNECTED:
            self.acknowledge()

    def _ack(self) -> int:
        """Return the number of the first message that is not complete."""
        return next(iter(self._partials), self._next_match)

    def on_tick(self, ticks: int) -> None:
        """Do what time brings: acknowledge, and send again."""
        settings = self._endpoint.settings
        if self.state == states.CONNECTING:
            if ticks - self._tick >= settings.resend:
                if self._is_lost():
                    self.lose("unreachable", Status.ENDPOINT_UNREACHABLE)
                    return
                self._step("tick")
                self._ask()
            return
        if self.owed:
            self.acknowledge()
        if self._unacked and ticks - self._unacked[0].sent >= settings.resend:
            if self._is_lost():
                self.lose("unreachable", Status.ENDPOINT_UNREACHABLE)
                return
            for outgoing in list(islice(self._unacked, _RESENT)):
                if ticks - outgoing.sent >= settings.resend:
                    self._endpoint.counters.resent += 1
                    self._transmit(outgoing)

    def _is_lost(self) -> bool:
        """Count that something is sent again; return whether that has been in vain too often."""
        self._tries += 1
        return 0 < self._endpoint.settings.resends < self._tries

    # From the partner.

    def receive_ack(self, event: Event) -> None:
        """Handle an acknowledgement in a frame of its own."""
        if self.state != states.CONNECTED or (event.total - self._heard_acknum - 1) & _WORD >= _HALF:
            self._endpoint.counters.old_session += 1
            return
        self._heard_acknum = event.total
        self._take_ack(event.ack)

    def receive(self, event: Event, data: memoryview) -> None:
        """Handle a message, or a fragment, and the acknowledgement in it."""
        if self.state != states.CONNECTED or event.seqnum >> SEQNUM_BITS != self._next_match >> SEQNUM_BITS:
            self._endpoint.counters.old_session += 1
            return
        ahead = (event.seqnum - self._next_match) & SEQNUM
        self.owed += 1  # a message that the program sends at once acknowledges this one
        if not ahead:
            self._accept(event, data)
            while early := self._early.pop(self._next_match, None):
                for kept, kept_data in early:
                    self._take_or_add(kept, memoryview(kept_data))
        elif event.seqnum in self._partials:
            self._add_fragment(event, data)
        else:
            self._take_out_of_order(event, data, ahead)
        if self.state != states.CONNECTED:
            return
        self._take_ack(event.ack)
        if self.owed >= self._endpoint.settings.acknowledge:
            self.acknowledge()
        elif self.owed:
            self._endpoint.arm(self)

    def _take_out_of_order(self, event: Event, data: memoryview, ahead: int) -> None:
        """Keep a message that has come too early, or drop it. ahead: how many messages are missing before it."""
        counters = self._endpoint.counters
        if ahead > max(EARLY, SEQNUM - MAX_UNACKED):
            counters.duplicates += 1
            self.owed = self._endpoint.settings.acknowledge  # the acknowledgement may be lost
            return
        self.owed -= 1
        kept_frames = self._early.setdefault(event.seqnum, []) if ahead <= EARLY else []
        if ahead > EARLY:
            counters.too_early += 1
        elif event.number in [kept.number for kept, _ in kept_frames]:
            counters.duplicates += 1
        else:
            counters.early += 1
            kept_frames.append((event, bytes(data)))

    def _take_or_add(self, event: Event, data: memoryview) -> None:
        if event.seqnum == self._next_match:
            self._accept(event, data)
        else:
            self._add_fragment(event, data)

    def _accept(self, event: Event, data: memoryview) -> None:
        """Take the next message, or its first fragment that has come."""
        self._next_match = seqnum_after(self._next_match)
        if event.type != TYPE_MEDIUM:
            self._endpoint.incoming.take(self, event, data)
            return
        incoming = self._endpoint.incoming.begin_medium(self, event)
        if self.state != states.CONNECTED:  # the program's handler has disconnected
            return
        incoming.seqnum = event.seqnum
        self._partials[event.seqnum] = incoming
        self._add_fragment(event, data)

    def _add_fragment(self, event: Event, data: memoryview) -> None:
        incoming = self._partials.get(event.seqnum)
        bit = 1 << event.number
        if incoming is None or not incoming.missing & bit:
            self._endpoint.counters.duplicates += 1
            return
        incoming.missing &= ~bit
        if not incoming.missing:
            del self._partials[event.seqnum]
        self._endpoint.incoming.store_fragment(incoming, event, data)

    def _take_ack(self, ack: int) -> None:
        unacked = self._unacked
        if not unacked or ack >> SEQNUM_BITS != self._next_send >> SEQNUM_BITS:
            return
        count = distance(ack, unacked[0].seqnum)
        if not 0 < count <= len(unacked):
            return
        self._tries = 0
        acknowledged = [unacked.popleft() for _ in range(count)]
        for outgoing in acknowledged:
            self._frames -= outgoing.frames
        self._endpoint.counters.acknowledged += count
        for outgoing in acknowledged:
            self._endpoint.acknowledged(outgoing)
        self._pump()


_REFUSALS: Final = {1: Status.BAD_ENDPOINT, 2: Status.ENDPOINT_CLOSED, 3: Status.BAD_SESSION, 4: Status.BAD_RDMAWIN}

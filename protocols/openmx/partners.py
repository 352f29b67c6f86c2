"""A partner: the remote endpoint of a connection, with reliable and ordered messages in both directions.

A sequence number has 14 bits for the message and two bits for the session; each connection begins a new session.
Acknowledgements are piggybacked on messages of the other direction, or sent in frames of their own after a tick or after
some messages. Unacknowledged messages are retransmitted. Messages that arrive out of order are kept.
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
    MAX_EARLY,
    MAX_FRAGMENTS,
    MAX_UNACKED,
    SEQNUM_BITS,
    SEQNUM_MASK,
    SESSIONS,
    SUCCESS,
    Status,
    distance,
    seqnum_after,
)
from protocols.openmx.mx_requests import Incoming, Outgoing

if TYPE_CHECKING:
    from protocols.openmx.endpoint import Endpoint

_MAX_RESENT_PER_TICK: Final = 16
"""Maximum number of messages, the oldest first, that are retransmitted in one tick. Usually the later ones have arrived, and
only wait for the missing one to be acknowledged. Our choice."""
_HALF_ACKNUMS: Final = 1 << 31
_HALF_REQUEST_NUMBERS: Final = 1 << 7
_MAX_FORMER: Final = 8
"""Maximum number of a partner's earlier sessions whose last request is recorded."""
_WORD_MASK: Final = 0xFFFF_FFFF


class Partner:
    """The remote end of a connection; programs use it as the endpoint's address (mx_endpoint_addr_t).

    node, index: numbers of the node and of the endpoint on it. session: the partner's session, 0 if unknown. context: value
    that the program has set (mx_set_endpoint_addr_context). max_eager: maximum bytes of an eager message to the partner.
    is_self: the partner is the endpoint itself, whose messages the library delivers. connected: completion of the connection
    that is being made, or None.
    """

    __slots__ = (
        "_acknum",
        "_before_session",
        "_connect_seqnum",
        "_early",
        "_endpoint",
        "_former_requests",
        "_incomplete",
        "_is_passive",
        "_key",
        "_last_acknum",
        "_last_request",
        "_last_request_tick",
        "_last_session",
        "_next_match",
        "_next_send",
        "_queue",
        "_retries",
        "_unacked",
        "_unacked_frames",
        "connected",
        "context",
        "index",
        "is_self",
        "max_eager",
        "node",
        "pending_acks",
        "session",
        "state",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, node: int, index: int, max_eager: int, is_self: bool) -> None:
        self.node: Final = node
        self.index: Final = index
        self.max_eager: Final = max_eager
        self.is_self: Final = is_self
        self.context: object = None
        self.session = 0
        self.state = states.PARTNER.initial
        self.connected: Completion[Status] | None = None
        self.pending_acks = 0
        """Number of received messages and fragments that have not been acknowledged."""
        self._endpoint = endpoint
        self._key = 0
        self._connect_seqnum = 0
        self._last_request_tick = 0  # at which the last connection request was sent
        self._retries = 0  # retransmissions of the oldest message, or of the connection request
        self._queue: deque[Outgoing] = deque()  # not sent yet
        self._unacked: deque[Outgoing] = deque()
        self._unacked_frames = 0  # total number of frames of the unacknowledged messages
        self._next_send = 0
        self._before_session = 0  # the number before the session's first message
        # Number of the next message to match. A reopened endpoint begins with another session, since messages and
        # acknowledgements of the previous one may still arrive.
        self._next_match = (endpoint.session % SESSIONS) << SEQNUM_BITS | endpoint.settings.first_seqnum
        self._incomplete: dict[int, Incoming] = {}  # messages with fragments to come, oldest first
        self._early: dict[int, list[tuple[Event, bytes]]] = {}
        self._acknum = 0
        self._last_acknum = 0
        self._last_session = 0, 0  # the partner's session, and the session number of the last messages sent to it
        self._is_passive = False  # the partner initiated this connection
        self._last_request = 0, 0  # session and number of the partner's last connection request
        # Last request of each earlier session of the partner, by session: copies of these requests may still arrive.
        self._former_requests: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<endpoint {self.index} of node {self.node}>"

    @property
    def is_connected(self) -> bool:
        return self.state == states.CONNECTED

    @property
    def is_active(self) -> bool:
        """Whether `on_tick` has something to do."""
        return bool(self.pending_acks or self._unacked) or self.state == states.CONNECTING

    def pending_work(self) -> list[str]:
        """Describe what the partner has not acknowledged, for a message about a stuck program."""
        if self.state == states.CONNECTING:
            return [f"a connection to endpoint {self.index} of node {self.node}"]
        count = len(self._unacked)
        return [f"acknowledgements of {count} messages to endpoint {self.index} of node {self.node}"] if count else []

    def command(self, op: int) -> Command:
        """Make a command about this partner."""
        return Command(op, self._endpoint.index, self.index, self.node)

    # Connection

    def connect(self, key: int) -> Completion[Status]:
        """Connect, unless connected already. The result of the returned completion is the status."""
        if self.connected is None:
            self.connected = Completion("a connection to endpoint %s of node %s", self.index, self.node)
        done = self.connected
        self._key = key
        if self.state == states.CONNECTED:
            self._complete_connecting(Status.SUCCESS)
        elif self.state == states.UNCONNECTED:
            self._step("connect")
            self._retries = 0
            self._begin_connecting()
        return done

    def reconnect(self) -> None:
        """Connect again after a loss, with the same key, so that the partner ends its messages in progress, too."""
        self.connect(self._key)

    def disconnect(self) -> None:
        """Disconnect; messages in progress fail (mx_disconnect)."""
        if self.state != states.UNCONNECTED:
            self.lose("disconnect", Status.ENDPOINT_CLOSED)

    def abandon_messages(self, status: Status) -> None:
        """Fail the partner's incomplete messages with `status`, and refuse what still arrives in this session."""
        if self.state == states.CONNECTED:
            incomplete, self._incomplete, self._early = self._incomplete, {}, {}
            self._begin_receiving()
            self._endpoint.incoming.fail_messages(self, list(incomplete.values()), status)

    def receive_request(self, event: Event) -> None:
        """Handle the partner's connection request, and answer it."""
        last_session, last_number = self._last_request
        former_number = self._former_requests.get(event.session, -1)
        if former_number >= 0:
            is_late = (former_number - event.number) & 0xFF < _HALF_REQUEST_NUMBERS
        else:
            is_late = event.session == last_session and 0 < (last_number - event.number) & 0xFF < _HALF_REQUEST_NUMBERS
        if is_late:
            self._endpoint.counters.old_session += 1
            return
        is_old = (event.session, event.number) == self._last_request or (
            event.session, event.seqnum >> SEQNUM_BITS
        ) == self._last_session  # fmt: skip
        if self.state != states.CONNECTED and is_old:
            # An old request: we answered it, or connected at the same time, and have closed that connection since. The
            # partner may still consider it open, so it needs a new one.
            self._endpoint.counters.old_session += 1
            self.connect(self._key)
            return
        is_same = (
            event.session == self.session
            and event.seqnum >> SEQNUM_BITS == self._next_send >> SEQNUM_BITS
            and (not self._is_passive or event.number == last_number)
        )
        self._record_request(event.session, event.number)
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
            self._is_passive = True
            self._begin_sending(event.seqnum)
        answer = self.command(Op.CONNECT)
        answer.flag, answer.session, answer.word = 1, event.session, self._endpoint.session
        answer.seqnum, answer.number = self._next_match, event.number
        self._endpoint.write(answer)
        self._complete_connecting(Status.SUCCESS)

    def _record_request(self, session: int, number: int) -> None:
        """Record the partner's last connection request, and keep the last one of its previous session."""
        last_session, last_number = self._last_request
        if last_session and session != last_session:
            self._former_requests[last_session] = last_number
            self._former_requests.pop(session, None)
            if len(self._former_requests) > _MAX_FORMER:
                del self._former_requests[next(iter(self._former_requests))]
        self._last_request = session, number

    def receive_answer(self, event: Event) -> None:
        """Handle the answer to our connection request.

        If the answer is to a late request from an earlier opening of this endpoint, and has a later session of messages
        than our connection, the partner has replaced our connection.
        """
        ahead = ((event.seqnum >> SEQNUM_BITS) - (self._next_send >> SEQNUM_BITS)) % SESSIONS
        if (
            self.state == states.CONNECTED
            and event.session != self._endpoint.session
            and event.word == self.session
            and 0 < ahead < SESSIONS - 1
        ):
            self.lose("refused", Status.BAD_SESSION)
        elif (
            self.state != states.CONNECTING
            or event.session != self._endpoint.session
            or event.number != self._connect_seqnum
        ):
            self._endpoint.counters.old_session += 1
        elif event.turn:
            self.lose("refused", Status.BAD_KEY)
        elif (event.word, event.seqnum >> SEQNUM_BITS) == self._last_session:
            # We answered the partner's request and sent messages with this session's numbers, which may still arrive.
            self._step("answer with a used session")
            self._begin_connecting()
        else:
            self._step("answer")
            self.session = event.word
            self._is_passive = False
            self._begin_sending(event.seqnum)
            self._complete_connecting(Status.SUCCESS)

    def receive_nack(self, event: Event) -> None:
        """Handle the partner driver's refusal of a message or of a connection request. A refusal of the sequence number
        before the session's first message reports that the partner's host has died."""
        status = _REFUSALS.get(event.flag, Status.ENDPOINT_CLOSED)
        if self.state == states.CONNECTING:
            if event.seqnum == self._next_match:
                self.lose("refused", status)
        elif self.state == states.CONNECTED and (
            event.seqnum == self._before_session or event.seqnum in [out.seqnum for out in self._unacked]
        ):
            self.lose("refused", status)

    def lose(self, event: str, status: Status) -> None:
        """Close the connection: messages in progress fail with `status`."""
        self._step(event)
        unacked, queue = self._unacked, self._queue
        self._unacked, self._queue, self._unacked_frames, self.pending_acks = deque(), deque(), 0, 0
        incomplete, self._incomplete, self._early = self._incomplete, {}, {}
        self._endpoint.fail_messages(self, [*unacked, *queue], list(incomplete.values()), status)
        self._complete_connecting(status)

    def _begin_connecting(self) -> None:
        """Start a connection with a new request number."""
        self._connect_seqnum = (self._connect_seqnum + 1) & 0xFF
        self.session = 0
        self._begin_receiving()
        self._send_request()

    def _send_request(self) -> None:
        endpoint = self._endpoint
        self._last_request_tick = endpoint.ticks
        request = self.command(Op.CONNECT)
        request.session, request.word = endpoint.session, self._key
        request.seqnum, request.number = self._next_match, self._connect_seqnum
        endpoint.write(request)
        endpoint.arm(self)

    def _complete_connecting(self, status: Status) -> None:
        done, self.connected = self.connected, None
        if done is not None:
            done.complete(status)
        self._pump()

    def _begin_receiving(self) -> None:
        """Begin a new session of messages from the partner."""
        session = ((self._next_match >> SEQNUM_BITS) + 1) % SESSIONS
        self._next_match = session << SEQNUM_BITS | self._endpoint.settings.first_seqnum
        self._last_acknum = 0
        self.pending_acks = 0

    def _begin_sending(self, seqnum: int) -> None:
        """Begin a new session of messages to the partner, from `seqnum` on."""
        self._last_session = self.session, seqnum >> SEQNUM_BITS
        self._next_send = seqnum
        self._before_session = seqnum_after(seqnum, -1)
        self._retries = 0
        self._acknum = 0

    def _step(self, event: str) -> None:
        row = states.PARTNER.row(self.state, event)
        self.state = row.next_state
        self._endpoint.counters.add(row.counters)

    # Sending

    def submit(self, outgoing: Outgoing) -> None:
        """Queue a message; it is sent in order, when the window permits."""
        self._queue.append(outgoing)
        if self.state == states.UNCONNECTED:
            self.connect(self._key)
        else:
            self._pump()
            if self._queue:
                self._endpoint.counters.throttled += 1

    def _pump(self) -> None:
        queue, unacked, max_frames = self._queue, self._unacked, self._endpoint.settings.unacked
        while queue and self.state == states.CONNECTED:
            if unacked and (self._unacked_frames + queue[0].frames > max_frames or len(unacked) >= MAX_UNACKED):
                return
            outgoing = queue.popleft()
            outgoing.seqnum = self._next_send
            # `seqnum_after`, inlined: a message's path has no further file.
            self._next_send = outgoing.seqnum & ~SEQNUM_MASK | (outgoing.seqnum + 1) & SEQNUM_MASK
            self._unacked_frames += outgoing.frames
            unacked.append(outgoing)
            self._transmit(outgoing)
            self._endpoint.on_transmitted(outgoing)

    def _transmit(self, outgoing: Outgoing) -> None:
        endpoint = self._endpoint
        outgoing.sent_tick = endpoint.ticks
        self.pending_acks = 0
        command = self.command(outgoing.op)
        command.seqnum, command.ack, command.session = outgoing.seqnum, self._ack(), self.session
        command.number, command.turn, command.match = outgoing.number, outgoing.turn, outgoing.match_info
        command.length, command.address = outgoing.length, outgoing.address
        endpoint.write(command, outgoing.data)
        endpoint.arm(self)

    def acknowledge(self) -> None:
        """Send a separate acknowledgement of all received messages."""
        self.pending_acks = 0
        self._acknum = (self._acknum + 1) & _WORD_MASK
        command = self.command(Op.ACK)
        command.ack, command.seqnum = self._ack(), self._next_send
        command.session, command.word = self.session, self._acknum
        self._endpoint.write(command)

    def flush(self) -> None:
        """Send a pending acknowledgement now."""
        if self.pending_acks and self.state == states.CONNECTED:
            self.acknowledge()

    def _ack(self) -> int:
        """Return the cumulative acknowledgement: the number of the first incomplete message."""
        return next(iter(self._incomplete)) if self._incomplete else self._next_match

    def on_tick(self, ticks: int) -> None:
        """Send due acknowledgements and retransmissions. Each round of retransmissions begins with another message, and each
        message with another fragment: in a fixed order, a periodic loss could hit the same frame in every round."""
        settings = self._endpoint.settings
        if self.state == states.CONNECTING:
            if ticks - self._last_request_tick >= settings.resend:
                if self._count_retry():
                    self.lose("unreachable", Status.ENDPOINT_UNREACHABLE)
                    return
                self._step("tick")
                self._send_request()
            return
        if self.pending_acks:
            self.acknowledge()
        if self._unacked and ticks - self._unacked[0].sent_tick >= settings.resend:
            if self._count_retry():
                self.lose("unreachable", Status.ENDPOINT_UNREACHABLE)
                return
            oldest = list(islice(self._unacked, _MAX_RESENT_PER_TICK))
            first = self._retries % len(oldest)
            for outgoing in oldest[first:] + oldest[:first]:
                if ticks - outgoing.sent_tick >= settings.resend:
                    self._endpoint.counters.resent += 1
                    if outgoing.op == Op.SEND_MEDIUM:
                        outgoing.number = self._retries % MAX_FRAGMENTS
                    self._transmit(outgoing)

    def _count_retry(self) -> bool:
        """Count a retransmission; return whether the limit is exceeded: the partner is then unreachable."""
        self._retries += 1
        return 0 < self._endpoint.settings.resends < self._retries

    # Receiving

    def receive_ack(self, event: Event) -> None:
        """Handle a frame with an acknowledgement only."""
        if self.state != states.CONNECTED or (event.total - self._last_acknum - 1) & _WORD_MASK >= _HALF_ACKNUMS:
            self._endpoint.counters.old_session += 1
            return
        self._last_acknum = event.total
        self._take_ack(event.ack)

    def receive(self, event: Event, data: memoryview) -> None:
        """Handle a message or a fragment, and its piggybacked acknowledgement."""
        if self.state != states.CONNECTED or event.seqnum >> SEQNUM_BITS != self._next_match >> SEQNUM_BITS:
            self._endpoint.counters.old_session += 1
            return
        ahead = (event.seqnum - self._next_match) & SEQNUM_MASK
        self.pending_acks += 1  # a reply that the program sends at once acknowledges this one
        if not ahead:
            self._accept(event, data)
            while early := self._early.pop(self._next_match, None):
                for kept, kept_data in early:
                    self._accept_or_add(kept, memoryview(kept_data))
        elif event.seqnum in self._incomplete:
            self._add_fragment(event, data)
        else:
            self._keep_out_of_order(event, data, ahead)
        if self.state != states.CONNECTED:
            return
        self._take_ack(event.ack)
        if self.pending_acks >= self._endpoint.settings.acknowledge:
            self.acknowledge()
        elif self.pending_acks:
            self._endpoint.arm(self)

    def _keep_out_of_order(self, event: Event, data: memoryview, ahead: int) -> None:
        """Keep an out-of-order message, or drop it. ahead: number of missing messages before it."""
        counters = self._endpoint.counters
        if ahead > max(MAX_EARLY, SEQNUM_MASK - MAX_UNACKED):
            counters.duplicates += 1
            self.pending_acks = self._endpoint.settings.acknowledge  # our acknowledgement may have been lost
            return
        self.pending_acks -= 1
        kept_frames = self._early.setdefault(event.seqnum, []) if ahead <= MAX_EARLY else []
        if ahead > MAX_EARLY:
            counters.too_early += 1
        elif event.number in [kept.number for kept, _ in kept_frames]:
            counters.duplicates += 1
        else:
            counters.early += 1
            kept_frames.append((event, bytes(data)))

    def _accept_or_add(self, event: Event, data: memoryview) -> None:
        if event.seqnum == self._next_match:
            self._accept(event, data)
        else:
            self._add_fragment(event, data)

    def _accept(self, event: Event, data: memoryview) -> None:
        """Accept the next message, or its first received fragment."""
        self._next_match = seqnum_after(self._next_match)
        if event.kind != TYPE_MEDIUM:
            self._endpoint.incoming.take(self, event, data)
            return
        incoming = self._endpoint.incoming.begin_medium(self, event)
        if self.state != states.CONNECTED:  # the program's handler has disconnected
            return
        incoming.seqnum = event.seqnum
        self._incomplete[event.seqnum] = incoming
        self._add_fragment(event, data)

    def _add_fragment(self, event: Event, data: memoryview) -> None:
        incoming = self._incomplete.get(event.seqnum)
        bit = 1 << event.number
        if incoming is None or not incoming.missing & bit:
            self._endpoint.counters.duplicates += 1
            return
        incoming.missing &= ~bit
        if not incoming.missing:
            del self._incomplete[event.seqnum]
        self._endpoint.incoming.store_fragment(incoming, event, data)

    def _take_ack(self, ack: int) -> None:
        unacked = self._unacked
        if not unacked or ack >> SEQNUM_BITS != self._next_send >> SEQNUM_BITS:
            return
        count = distance(ack, unacked[0].seqnum)
        if not 0 < count <= len(unacked):
            return
        self._retries = 0
        acknowledged: list[Outgoing] = []
        for _ in range(count):
            outgoing = unacked.popleft()
            self._unacked_frames -= outgoing.frames
            acknowledged.append(outgoing)
        self._endpoint.counters.acknowledged += count
        for outgoing in acknowledged:
            self._endpoint.finish_send(outgoing, SUCCESS)
        if self._queue:
            self._pump()


_REFUSALS: Final = {1: Status.BAD_ENDPOINT, 2: Status.ENDPOINT_CLOSED, 3: Status.BAD_SESSION, 4: Status.BAD_RDMAWIN}

"""Sessions with peers, and send queues: message order and transfers in progress of MPI on AM-II.

Active messages are unordered, and a node may restart. So each request names a session of each of the two nodes. A node's
session consists of its incarnation, and of the number of its sessions with that peer that have ended since, after losses.
Within a pair of sessions, messages to be matched are numbered; a receiver keeps early ones. A sender stops after WINDOW
requests until all have been answered, which limits the number of early messages.

Each peer has a send queue, with messages, chunks of long messages and control requests. A queue stops if its peer must
answer first: all of AM-II's credits are used, a whole window waits for answers, or the peer's session is unknown. All
queues stop if the endpoint's ring is full. Otherwise the queues take turns with one item each. While a handler runs, which
may only reply, nothing is sent.

This module defines the contents of requests; `endpoint` has their handlers.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.core.completion import drive
from protocols.mpi.am2.staging_area import SLOT_SIZE
from protocols.mpi.device import SendCompletion
from protocols.mpi.matching import Arrival
from protocols.mpi.mpi_errors import Envelope

MASK: Final = 0xFFFF_FFFF
WINDOW: Final = 64
"""Requests; an additional round trip for that many costs little. Our choice."""
_HALF: Final = 1 << 31
_MAX_NOTICES: Final = 8
"""Maximum consecutive notices of a new session to a peer; after that, the next message announces it. Our choice."""

Session = tuple[int, int]
"""Incarnation of the NIC, and epoch: the number of ended sessions, plus EPOCHS_PER_PROCESS for each former process in the
host slot of a shared NIC."""
EPOCHS_PER_PROCESS: Final = 1 << 16
Head = tuple[int, int, int, int]
"""The first words of each request: the sender's session, and the receiver's, which is zeros while it is unknown."""

TAG: Final = 0x4D50_492D_414D_3200
"""The tag of all endpoints of MPI. The rest of this protocol is our choice, too."""

# Handlers of requests, with the arguments that follow the head.
HELLO: Final = 1
"""Number of the sender's replies that were returned to it."""
SHORT: Final = 2
"""Number, context and length, tag, the data as words."""
EAGER: Final = 3
"""Number, context, tag, length, offset of the data."""
OFFER: Final = 4
"""Number, context, tag, length."""
GRANT: Final = 5
"""Number, bytes granted, slots of the staging region."""
CHUNK: Final = 6
"""Number, slot, offset of the data."""
CLEAR: Final = 7
"""No arguments: no message of a former session is in flight any more."""
MESSAGES: Final = frozenset((SHORT, EAGER, OFFER, CHUNK))
"""Requests that carry messages."""
# Handlers of replies, which all begin with the request's head.
TAKEN: Final = 8
PLACED: Final = 9
"""Number, and a slot, which may be filled again."""
MEET: Final = 10
"""The replier's session, the number of its replies that were returned to it, and the number of a rejected message, if
any."""

_MAX_WORDS: Final = 9  # of AM-II's sixteen, without the head and SHORT's other three arguments
_MAX_SHORT: Final = 4 * _MAX_WORDS
_UNPACK: Final = tuple(struct.Struct(f"!{count}I").unpack for count in range(_MAX_WORDS + 1))


class OutgoingMessage:
    """An outgoing message. number: among the messages to its peer in this session. sent: bytes passed to the NIC. granted:
    bytes that the receiver has granted; -1: no grant has arrived."""

    __slots__ = ("completion", "context", "data", "granted", "number", "sent", "tag")

    def __init__(self, number: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> None:
        self.number = number
        self.context = context
        self.tag = tag
        self.data = data
        self.completion = completion
        self.sent = 0
        self.granted = -1


class Chunk(NamedTuple):
    """The part of a message for one slot of its receiver's staging region."""

    message: OutgoingMessage
    slot: int


class ControlRequest(NamedTuple):
    """A control request to a peer. arguments: those that follow the head."""

    handler: int
    arguments: tuple[int, ...] = ()


class Fragment(NamedTuple):
    """A received part of a message. length: of the message. offset: of the part's bytes in the message; -1: an offer,
    without bytes."""

    context: int
    tag: int
    length: int
    offset: int
    data: bytes | memoryview


class IncomingMessage:
    """An incomplete incoming message. missing: bytes still to come. slots: slots of the staging region, granted for it."""

    __slots__ = ("arrival", "missing", "slots")

    def __init__(self, missing: int) -> None:
        self.arrival: Arrival
        self.missing = missing
        self.slots: tuple[int, ...] = ()


class EndedSession(NamedTuple):
    """Transfers of an ended session. sending: messages not completely sent. arriving: messages not completely received.
    doubtful: completed sends whose messages may be lost. delivered: completed sends whose messages have arrived."""

    sending: list[OutgoingMessage]
    arriving: list[IncomingMessage]
    doubtful: list[SendCompletion]
    delivered: list[SendCompletion]


class Pair:
    """State for one peer.

    peer: its rank. own_session, peer_session: the sessions. is_open: the peer's present session is known. outgoing,
    incoming: the heads of requests in these sessions; incoming is None before the session is open. translation: the peer's
    entry in the translation table; -1: none.

    queue: items to send. message_count: number of messages to the peer in this session. sending: messages not completely
    sent, by number. released: completed sends, with their numbers, since all requests were last answered.
    unanswered_count: number of unanswered requests. window_used: number of requests sent since none was unanswered.
    former_unanswered_count: number of unanswered requests of former sessions. is_announced: a request that announces
    this node's session is in flight. notices_left: announcements of a new session that remain to be sent if there is no
    other traffic. refusal_count: number of times that the peer had no endpoint. is_ready: the queue is among those that
    may be sent from. owes_clear: the peer is to be notified when no message of an earlier session is in flight any more.

    returned_reply_count: number of this node's replies that were returned. reported_reply_count: how many of these have been
    reported to the peer. lost_reply_count: number of returned replies that the peer has reported. lacks_credits: credits are
    missing for requests whose replies will not arrive.

    expected: number of the next message from the peer. early: fragments of later messages. arriving: incomplete messages.
    """

    __slots__ = (
        "arriving",
        "early",
        "expected",
        "former_unanswered_count",
        "incoming",
        "is_announced",
        "is_open",
        "is_ready",
        "lacks_credits",
        "lost_reply_count",
        "message_count",
        "notices_left",
        "outgoing",
        "owes_clear",
        "own_session",
        "peer",
        "peer_session",
        "queue",
        "refusal_count",
        "released",
        "reported_reply_count",
        "returned_reply_count",
        "sending",
        "translation",
        "unanswered_count",
        "window_used",
    )  # fmt: skip

    def __init__(self, peer: int, incarnation: int, turn: int = 1) -> None:
        """turn: see `HostSlot`."""
        self.peer = peer
        self.translation = -1
        self.own_session: Session = (incarnation, (turn - 1) * EPOCHS_PER_PROCESS & MASK)
        self.peer_session: Session | None = None
        self.is_open = False
        self.outgoing: Head = (*self.own_session, 0, 0)
        self.incoming: Head | None = None
        self.queue: deque[OutgoingMessage | Chunk | ControlRequest] = deque()
        self.unanswered_count = 0
        self.former_unanswered_count = 0
        self.is_announced = False
        self.notices_left = 0
        self.refusal_count = 0
        self.is_ready = False
        self.owes_clear = False
        self.returned_reply_count = 0
        self.reported_reply_count = 0
        self.lost_reply_count = 0
        self.lacks_credits = False
        self._begin()

    def _begin(self) -> None:
        self.message_count = 0
        self.sending: dict[int, OutgoingMessage] = {}
        self.released: list[tuple[int, SendCompletion]] = []
        self.window_used = 0
        self.expected = 1
        self.early: dict[int, list[Fragment]] = {}
        self.arriving: dict[int, IncomingMessage] = {}

    def is_of_other_process(self, peer_session: Session) -> bool:
        """Whether a session of the peer belongs to another process than the known session, if any."""
        current = self.peer_session
        return current is not None and (
            peer_session[0] != current[0] or peer_session[1] // EPOCHS_PER_PROCESS != current[1] // EPOCHS_PER_PROCESS
        )

    def is_newer(self, peer_session: Session) -> bool:
        """Whether a session of the peer is later than the known one, if any."""
        current = self.peer_session
        if current is None:
            return True
        if peer_session[0] != current[0]:
            return peer_session[0] - current[0] & MASK < _HALF
        return peer_session[1] > current[1]

    def open(self, peer_session: Session) -> None:
        """Open the session with the session that the peer has announced."""
        self.peer_session = peer_session
        self.is_open = True
        self.is_announced = False
        self.notices_left = self.refusal_count = 0
        self._set_head((*self.own_session, *peer_session))
        self.incoming = (*peer_session, *self.own_session)

    def end(self, renew: bool, doubtful: Iterable[int]) -> EndedSession:
        """End the session, and with it all transfers in progress. renew: begin a new session of this node. doubtful: numbers
        of messages with an unanswered request. The messages sent after the first of them are in doubt, too, since a receiver
        discards early messages."""
        if self.is_open:
            self.notices_left = _MAX_NOTICES
            self.owes_clear = True
        if renew:
            self.own_session = (self.own_session[0], self.own_session[1] + 1)
        age = max((self.message_count - number & MASK for number in doubtful), default=-1)
        ended = EndedSession(list(self.sending.values()), list(self.arriving.values()), [], [])
        for number, completion in self.released:
            (ended.doubtful if self.message_count - number & MASK <= age else ended.delivered).append(completion)
        self.queue.clear()
        self.is_open = self.is_announced = False
        self.incoming = None
        self._set_head((*self.own_session, 0, 0))
        self._begin()
        return ended

    def reject_messages(self) -> list[IncomingMessage]:
        """Reject requests that still arrive in this session, since the peer has crashed. Returns its incomplete messages."""
        self.incoming = None
        arriving, self.arriving = list(self.arriving.values()), {}
        self.early.clear()
        return arriving

    def next_message(self, context: int, tag: int, data: memoryview, completion: SendCompletion) -> OutgoingMessage:
        """Make the next message to the peer."""
        self.message_count = number = self.message_count + 1 & MASK
        self.sending[number] = outgoing = OutgoingMessage(number, context, tag, data, completion)
        return outgoing

    def release(self, message: OutgoingMessage) -> None:
        """Complete the send of a message that has been passed to the NIC completely."""
        self.released.append((message.number, message.completion))
        message.completion.release(Envelope(self.peer, message.tag, len(message.data)))

    def count_request(self) -> None:
        """Count a request before the attempt to send it."""
        self.unanswered_count += 1
        self.window_used += 1

    def uncount_request(self) -> None:
        """Undo `count_request` for a request that was not sent."""
        self.unanswered_count -= 1
        self.window_used -= 1

    def on_lost_replies(self, returned_reply_count: int) -> None:
        """Handle an increased count of the peer's returned replies, which will not arrive."""
        self.former_unanswered_count = max(
            0, self.former_unanswered_count - (returned_reply_count - self.lost_reply_count)
        )
        self.lost_reply_count = returned_reply_count
        self.lacks_credits = True

    def reset_replies(self) -> None:
        """Reset the counts of replies for a new process or incarnation of the peer."""
        self.former_unanswered_count = self.returned_reply_count = self.reported_reply_count = self.lost_reply_count = 0
        self.lacks_credits = False

    def count_reply(self, head: Head) -> None:
        """Count the reply to a request with that head."""
        if head != self.outgoing:
            self.former_unanswered_count = max(0, self.former_unanswered_count - 1)
            return
        self.unanswered_count -= 1
        if not self.unanswered_count:
            self.window_used = 0
            if self.released:
                released, self.released = self.released, []
                for _, completion in released:
                    completion.deliver()

    def messages_before(self, number: int) -> int:
        """Return how many messages before this one have not begun to arrive; -1 if this one has."""
        count = number - self.expected & MASK
        return count if count < _HALF else -1

    @property
    def has_more(self) -> bool:
        """Whether there are items to send to the peer."""
        return bool(self.queue or self.notices_left)

    @property
    def is_evictable(self) -> bool:
        """Whether no replies are due through the peer's entry in the translation table."""
        return not (self.unanswered_count or self.former_unanswered_count)

    def _set_head(self, head: Head) -> None:
        self.outgoing = head
        self.former_unanswered_count += self.unanswered_count
        self.unanswered_count = self.window_used = 0


class SendResult(Enum):
    """Result of an attempt to send an item. SENT: the item, or a part of it, was sent. HELD: the peer must answer first.
    FULL: the ring is full."""

    SENT = 0
    HELD = 1
    FULL = 2


_SENT: Final = SendResult.SENT
_HELD: Final = SendResult.HELD
_FULL: Final = SendResult.FULL


class SendQueues:
    """The send queues of one endpoint."""

    __slots__ = (
        "_credits",
        "_endpoint",
        "_fragment",
        "_host",
        "_is_sending",
        "_is_waiting",
        "_mapped",
        "_max_eager",
        "_ready",
        "_unmapped",
    )  # fmt: skip

    def __init__(self, host: ActiveMessages, endpoint: Endpoint) -> None:
        self._host = host
        self._endpoint = endpoint
        self._fragment = host.max_medium
        self._credits = host.settings.credits
        self._max_eager = host.settings.credits * host.max_medium
        self._mapped: dict[Pair, None] = {}  # peers with an entry of the translation table
        self._unmapped: dict[Pair, None] = {}  # peers that wait for an entry, in order
        self._ready: deque[Pair] = deque()  # peers whose queues may be sent from, in order
        self._is_sending = False
        self._is_waiting = False  # waiting for room in the ring

    def put(self, pair: Pair, item: OutgoingMessage | Chunk | ControlRequest) -> None:
        """Send an item at once if its turn has come, otherwise queue it."""
        queue = pair.queue
        is_first = not queue and not self._ready and not self._is_sending and self._host.handling_endpoint is None
        queue.append(item)
        if is_first and self._try_send(pair) is _SENT and not queue:
            return
        self.wake(pair)
        self.advance()

    def wake(self, pair: Pair) -> None:
        """Mark a peer's queue as one that may be sent from."""
        if not pair.is_ready:
            pair.is_ready = True
            self._ready.append(pair)

    def on_reply(self, pair: Pair) -> None:
        """Handle a peer's reply to a request."""
        if pair.lacks_credits:
            self.restore(pair)
        unmapped = self._unmapped
        while unmapped and pair.is_evictable:
            first = next(iter(unmapped))
            del unmapped[first]
            if first.has_more:
                self.wake(first)
                break
        if pair.queue:
            self.wake(pair)

    def restore(self, pair: Pair) -> None:
        """Restore a peer's missing credits, if no replies are due any more: a new entry in the translation table has all
        credits."""
        if pair.is_evictable:
            pair.lacks_credits = False
            if pair.translation >= 0:
                self._evict(pair)
        if pair.has_more:
            self.wake(pair)

    def advance(self) -> None:
        """Send queued items, unless a handler runs, or this method is running already."""
        if self._is_sending or not self._ready or self._host.handling_endpoint is not None:
            return
        ready = self._ready
        self._is_sending = True
        try:
            while ready:
                pair = ready[0]
                result = self._try_send(pair)
                if result is _FULL:
                    break
                ready.popleft()
                if result is _SENT and pair.has_more:
                    ready.append(pair)
                else:
                    pair.is_ready = False
        finally:
            self._is_sending = False
        if ready and not self._is_waiting:
            self._is_waiting = True
            drive(self._wait_for_room())

    def restarted_peers(self) -> list[Pair]:
        """Return the peers with all credits despite unanswered requests: AM-II's library has detected that they
        restarted."""
        credits_of, max_credits = self._endpoint.credits, self._credits
        return [pair for pair in self._mapped if pair.unanswered_count and credits_of(pair.translation) == max_credits]

    async def _wait_for_room(self) -> None:
        while self._ready and self._host.handling_endpoint is None:  # after a handler, `Am2Endpoint` calls `advance`
            await self._endpoint.wait_for_room(self._ready[0].translation)
            self.advance()
        self._is_waiting = False

    def _try_send(self, pair: Pair) -> SendResult:
        """Try to send the first item of a peer's queue."""
        if not pair.has_more or (pair.translation < 0 and not self._map(pair)):
            return _HELD
        if not pair.is_open:
            return _HELD if pair.is_announced else self._announce(pair)
        if pair.window_used >= WINDOW:
            return _HELD
        queue = pair.queue
        item = queue.popleft()
        if isinstance(item, OutgoingMessage):
            size = len(item.data)
            if size <= _MAX_SHORT:
                result = self._send_short(pair, item)
            elif size <= self._max_eager:
                result = self._send_eager(pair, item)
            else:
                result = self._send_request(pair, OFFER, item.number, item.context, item.tag, size)
        elif isinstance(item, Chunk):
            result = self._send_chunk(pair, item)
        else:
            result = self._send_request(pair, item.handler, *item.arguments)
        if result is not _SENT:
            queue.appendleft(item)
        return result

    def _announce(self, pair: Pair) -> SendResult:
        """Announce this node's session, and ask for the peer's."""
        pair.is_announced = True
        result = self._send_request(pair, HELLO, pair.returned_reply_count)
        if result is not _SENT:
            pair.is_announced = False
            return result
        pair.reported_reply_count = pair.returned_reply_count
        if pair.notices_left:
            pair.notices_left -= 1
        return result

    def _send_short(self, pair: Pair, message: OutgoingMessage) -> SendResult:
        data, number = message.data, message.number
        size = len(data)
        count = size + 3 >> 2
        words = _UNPACK[count](data if size == count << 2 else bytes(data).ljust(count << 2, b"\0"))
        del pair.sending[number]  # before the attempt, during which events of the peer may be handled
        result = self._send_request(pair, SHORT, number, message.context << 16 | size, message.tag, *words)
        if result is _SENT:
            pair.release(message)
        else:
            pair.sending[number] = message
        return result

    def _send_eager(self, pair: Pair, message: OutgoingMessage) -> SendResult:
        """Send one fragment; the rest of the message stays first in the queue."""
        begin, size, number = message.sent, len(message.data), message.number
        data = message.data[begin : begin + self._fragment]
        message.sent = end = begin + len(data)
        if end < size:
            pair.queue.appendleft(message)
        else:
            del pair.sending[number]
        pair.count_request()
        if self._endpoint.try_request_medium(
            pair.translation, EAGER, data, *pair.outgoing, number, message.context, message.tag, size, begin
        ):
            if end == size:
                pair.release(message)
            return _SENT
        message.sent = begin
        if end < size:
            pair.queue.popleft()
        else:
            pair.sending[number] = message
        return self._not_sent(pair)

    def _send_chunk(self, pair: Pair, chunk: Chunk) -> SendResult:
        message, slot = chunk
        begin, number = message.sent, message.number
        data = message.data[begin : min(begin + SLOT_SIZE, message.granted)]
        if not data:
            return _SENT  # the rest was sent to the other slot
        message.sent = end = begin + len(data)
        if end == message.granted:
            del pair.sending[number]
        pair.count_request()
        if self._endpoint.try_request_bulk(
            pair.translation, CHUNK, data, slot * SLOT_SIZE, *pair.outgoing, number, slot, begin
        ):
            if end == message.granted:
                pair.release(message)
            return _SENT
        message.sent = begin
        pair.sending[number] = message
        return self._not_sent(pair)

    def _send_request(self, pair: Pair, handler: int, *words: int) -> SendResult:
        pair.count_request()
        if self._endpoint.try_request(pair.translation, handler, *pair.outgoing, *words):
            return _SENT
        return self._not_sent(pair)

    def _not_sent(self, pair: Pair) -> SendResult:
        """Undo the count of a request that was not sent, and return why it was not."""
        pair.uncount_request()
        return _FULL if self._endpoint.credits(pair.translation) else _HELD

    def _evict(self, pair: Pair) -> None:
        del self._mapped[pair]
        self._endpoint.unmap(pair.translation)
        pair.translation = -1

    def _map(self, pair: Pair) -> bool:
        """Map an entry of the translation table to a peer; return whether there was one. Peers take turns if there are fewer
        entries than peers."""
        endpoint = self._endpoint
        if len(self._mapped) == endpoint.translations:
            evicted = next((mapped for mapped in self._mapped if mapped.is_evictable), None)
            if evicted is None:
                self._unmapped[pair] = None
                return False
            self._evict(evicted)
        pair.translation = endpoint.map_any(self._host.name_of(pair.peer), TAG)
        self._mapped[pair] = None
        return True

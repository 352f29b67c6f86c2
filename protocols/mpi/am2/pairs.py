"""Sessions: a node's state for another one with which it exchanges MPI's messages by active messages: identity, order
of messages, and transfers in progress.

Active messages are unordered, and a node may restart. So each message names the sessions of both nodes. A session is a
node's incarnation, and the number of times that it has begun anew with that peer since, after losses. Within the
sessions of both, messages to be matched are numbered; a receiver keeps early ones. A sender stops after WINDOW active
messages until all have been answered, which limits the number of early ones.

Everything that MPI has to send to a peer is queued in a line: messages, the chunks of long ones, and control words. A
line stops if its peer has to answer first: all of AM-II's credits are used, a whole window waits for answers, or the
peer's identity is unknown. All lines stop if the endpoint's ring is full. Otherwise the lines take turns with one item
each; none while a handler runs, which may only reply.

This module defines the contents of requests; `endpoint` handles them.
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
from protocols.mpi.am2.staging_area import SLOT
from protocols.mpi.device import Dispatch
from protocols.mpi.matching import Arrival
from protocols.mpi.mpi_errors import Envelope

MASK: Final = 0xFFFF_FFFF
WINDOW: Final = 64
"""Ours: one additional round trip for that many messages costs little."""
_HALF: Final = 1 << 31
_ANEW: Final = 8
"""Maximum consecutive notices of a new session to a peer; after that the next message tells it (ours)."""

Session = tuple[int, int]
"""Incarnation of the NIC, and number of new beginnings, which counts LIFE for each process that had the place at a shared
NIC before."""
LIFE: Final = 1 << 16
"""Maximum number of new beginnings of a process."""
Head = tuple[int, int, int, int]
"""The first words of each request: the sender's session, and the receiver's; zeros for an unknown one."""

TAG: Final = 0x4D50_492D_414D_3200
"""The tag of all endpoints; ours, like the whole protocol."""

# Handlers of requests, with the arguments behind the head.
HELLO: Final = 1
"""Number of the sender's answers that were returned to it."""
SHORT: Final = 2
"""Number, context and length, tag, the data as words."""
EAGER: Final = 3
"""Number, context, tag, length, offset of the data."""
OFFER: Final = 4
"""Number, context, tag, length."""
GRANT: Final = 5
"""Number, bytes that the receive has room for, slots of the staging region."""
CHUNK: Final = 6
"""Number, slot, offset of the data."""
CLEAR: Final = 7
"""No fields: no message of a former session is in flight any more."""
MESSAGES: Final = frozenset((SHORT, EAGER, OFFER, CHUNK))
"""Requests that carry messages."""
# Handlers of replies, which all begin with the request's head.
TAKEN: Final = 8
PLACED: Final = 9
"""Number, slot: it may be filled again."""
MEET: Final = 10
"""The replier's session, and as HELLO; then the number of the refused message, if it was one."""

_MAX_WORDS: Final = 9  # the rest of AM-II's sixteen
_MAX_SHORT: Final = 4 * _MAX_WORDS
_UNPACK: Final = tuple(struct.Struct(f"!{count}I").unpack for count in range(_MAX_WORDS + 1))


class Outgoing:
    """An outgoing message. number: among those to its peer. sent: bytes that the NIC has. wanted: bytes that its
    receiver has room for; -1: not known yet."""

    __slots__ = ("completion", "context", "data", "number", "sent", "tag", "wanted")

    def __init__(self, number: int, context: int, tag: int, data: memoryview, completion: Dispatch) -> None:
        self.number = number
        self.context = context
        self.tag = tag
        self.data = data
        self.completion = completion
        self.sent = 0
        self.wanted = -1


class Chunk(NamedTuple):
    """The part of a message for one slot of its receiver's staging region."""

    message: Outgoing
    slot: int


class Word(NamedTuple):
    """A control request to a peer. arguments: behind the head."""

    handler: int
    arguments: tuple[int, ...] = ()


class Fragment(NamedTuple):
    """A part of a message that has arrived. offset: of its bytes in the message; -1: it is an offer, without bytes."""

    context: int
    tag: int
    length: int
    offset: int
    data: bytes | memoryview


class Incoming:
    """A message that is not complete. missing: bytes. slots: of the staging region, for it."""

    __slots__ = ("arrival", "missing", "slots")

    def __init__(self, missing: int) -> None:
        self.arrival: Arrival
        self.missing = missing
        self.slots: tuple[int, ...] = ()


class Ended(NamedTuple):
    """Remains of an ended session: unsent messages, partly received ones, and of those sent the doubtful and the
    delivered ones."""

    sending: list[Outgoing]
    arriving: list[Incoming]
    doubtful: list[Dispatch]
    delivered: list[Dispatch]


class Pair:
    """State for one peer.

    peer: its rank. ours, theirs: the sessions. is_open: the peer's session is known to belong to ours. outgoing,
    incoming: the heads of messages in these sessions; incoming is None before they are open. place: in the translation
    table; -1: none.

    queue: items to be sent. numbered: number of messages to it so far. sending: unsent messages, by number. released:
    sent messages, since all requests were last answered, with their numbers. unanswered: number of unanswered requests.
    run: requests since there was none unanswered. former: number unanswered when the session ended. is_announced: a request
    that states our session is in flight. notices_left: remaining notices that we have begun anew, to be sent without other
    traffic. refusals: number of times that it had no endpoint. is_ready: it is queued among the peers with items to
    send. owes: it waits to be told that nothing of a former session is in flight any more.

    unheard: total of our answers that were returned. said: the part of these that the peer has been told of. missed:
    the peer's returned answers that it has told of. lacks: credits are missing for requests whose answers will not
    arrive.

    expected: number of the next message from it. early: fragments of later messages. arriving: incomplete messages.
    """

    __slots__ = (
        "arriving",
        "early",
        "expected",
        "former",
        "incoming",
        "is_announced",
        "is_open",
        "is_ready",
        "lacks",
        "missed",
        "notices_left",
        "numbered",
        "ours",
        "outgoing",
        "owes",
        "peer",
        "place",
        "queue",
        "refusals",
        "released",
        "run",
        "said",
        "sending",
        "theirs",
        "unanswered",
        "unheard",
    )  # fmt: skip

    def __init__(self, peer: int, incarnation: int, turn: int = 1) -> None:
        """turn: see `HostSlot`."""
        self.peer = peer
        self.place = -1
        self.ours: Session = (incarnation, (turn - 1) * LIFE & MASK)
        self.theirs: Session | None = None
        self.is_open = False
        self.outgoing: Head = (*self.ours, 0, 0)
        self.incoming: Head | None = None
        self.queue: deque[Outgoing | Chunk | Word] = deque()
        self.unanswered = 0
        self.former = 0
        self.is_announced = False
        self.notices_left = 0
        self.refusals = 0
        self.is_ready = False
        self.owes = False
        self.unheard = 0
        self.said = 0
        self.missed = 0
        self.lacks = False
        self._begin()

    def _begin(self) -> None:
        self.numbered = 0
        self.sending: dict[int, Outgoing] = {}
        self.released: list[tuple[int, Dispatch]] = []
        self.run = 0
        self.expected = 1
        self.early: dict[int, list[Fragment]] = {}
        self.arriving: dict[int, Incoming] = {}

    def is_of_another(self, theirs: Session) -> bool:
        """Whether a session of the peer's is of another process than the known one, if any."""
        known = self.theirs
        return known is not None and (theirs[0] != known[0] or theirs[1] // LIFE != known[1] // LIFE)

    def is_news(self, theirs: Session) -> bool:
        """Whether a session of the peer's is later than the known one, if any."""
        known = self.theirs
        if known is None:
            return True
        if theirs[0] != known[0]:
            return theirs[0] - known[0] & MASK < _HALF
        return theirs[1] > known[1]

    def open(self, theirs: Session) -> None:
        """Open the session: the peer has stated its own."""
        self.theirs = theirs
        self.is_open = True
        self.is_announced = False
        self.notices_left = self.refusals = 0
        self._head((*self.ours, *theirs))
        self.incoming = (*theirs, *self.ours)

    def end(self, renew: bool, doubtful: Iterable[int]) -> Ended:
        """End the session; what is in progress is lost. renew: we begin anew. doubtful: numbers of messages with an
        unanswered request. A receiver discards early messages, so those sent after the doubtful ones are in doubt,
        too."""
        if self.is_open:
            self.notices_left = _ANEW
            self.owes = True
        if renew:
            self.ours = (self.ours[0], self.ours[1] + 1)
        age = max((self.numbered - number & MASK for number in doubtful), default=-1)
        ended = Ended(list(self.sending.values()), list(self.arriving.values()), [], [])
        for number, completion in self.released:
            (ended.doubtful if self.numbered - number & MASK <= age else ended.delivered).append(completion)
        self.queue.clear()
        self.is_open = self.is_announced = False
        self.incoming = None
        self._head((*self.ours, 0, 0))
        self._begin()
        return ended

    def message(self, context: int, tag: int, data: memoryview, completion: Dispatch) -> Outgoing:
        """Make the next message to the peer."""
        self.numbered = number = self.numbered + 1 & MASK
        self.sending[number] = outgoing = Outgoing(number, context, tag, data, completion)
        return outgoing

    def release(self, message: Outgoing) -> None:
        """Complete the send of a message that the NIC has completely."""
        self.released.append((message.number, message.completion))
        message.completion.release(Envelope(self.peer, message.tag, len(message.data)))

    def asks(self) -> None:
        """Count a request that is sent, or tried."""
        self.unanswered += 1
        self.run += 1

    def has_not_asked(self) -> None:
        """Uncount a request that was not sent."""
        self.unanswered -= 1
        self.run -= 1

    def misses(self, unheard: int) -> None:
        """Handle the peer's count of its returned answers, which has increased: those will not arrive."""
        self.former = max(0, self.former - (unheard - self.missed))
        self.missed = unheard
        self.lacks = True

    def is_another(self) -> None:
        """Reset counts for a new incarnation of the peer: the former one can neither answer nor be told."""
        self.former = self.unheard = self.said = self.missed = 0
        self.lacks = False

    def answered(self, head: Head) -> None:
        """Count the answer to a request with that head."""
        if head != self.outgoing:
            self.former = max(0, self.former - 1)
            return
        self.unanswered -= 1
        if not self.unanswered:
            self.run = 0
            if self.released:
                released, self.released = self.released, []
                for _, completion in released:
                    completion.deliver()

    def ahead(self, number: int) -> int:
        """Return the number of messages before that one; below 0: it has begun to arrive."""
        ahead = number - self.expected & MASK
        return ahead if ahead < _HALF else -1

    @property
    def has_more(self) -> bool:
        """Whether there are items to be sent to it."""
        return bool(self.queue or self.notices_left)

    @property
    def is_evictable(self) -> bool:
        """Whether no answers are due by its place of the translation table."""
        return not (self.unanswered or self.former)

    def _head(self, head: Head) -> None:
        self.outgoing = head
        self.former += self.unanswered
        self.unanswered = self.run = 0


class SendResult(Enum):
    """Result of an attempt to send: some of it was sent; the peer has to answer first; the ring is full."""

    SENT = 0
    HELD = 1
    FULL = 2


_SENT: Final = SendResult.SENT
_HELD: Final = SendResult.HELD
_FULL: Final = SendResult.FULL


class Lines:
    """The lines of one endpoint."""

    __slots__ = (
        "_credits", "_endpoint", "_fragment", "_host", "_is_seeking", "_is_sending", "_max_eager", "_placed", "_placeless",
        "_ready",
    )  # fmt: skip

    def __init__(self, host: ActiveMessages, endpoint: Endpoint) -> None:
        self._host = host
        self._endpoint = endpoint
        self._fragment = host.max_medium
        self._credits = host.settings.credits
        self._max_eager = host.settings.credits * host.max_medium
        self._placed: dict[Pair, None] = {}  # peers with a place of the translation table
        self._placeless: dict[Pair, None] = {}  # peers without one, in turn
        self._ready: deque[Pair] = deque()  # peers that may be sent something, in turn
        self._is_sending = False
        self._is_seeking = False  # waiting for room

    def put(self, pair: Pair, what: Outgoing | Chunk | Word) -> None:
        """Send an item, or queue it."""
        queue = pair.queue
        is_first = not queue and not self._ready and not self._is_sending and self._host.handling_endpoint is None
        queue.append(what)
        if is_first and self._try(pair) is _SENT and not queue:
            return
        self.wake(pair)
        self.advance()

    def wake(self, pair: Pair) -> None:
        """Mark a peer as possibly ready for sending."""
        if not pair.is_ready:
            pair.is_ready = True
            self._ready.append(pair)

    def answered(self, pair: Pair) -> None:
        """Handle a peer's answer to a request."""
        if pair.lacks:
            self.restore(pair)
        placeless = self._placeless
        while placeless and pair.is_evictable:
            first = next(iter(placeless))
            del placeless[first]
            if first.has_more:
                self.wake(first)
                break
        if pair.queue:
            self.wake(pair)

    def restore(self, pair: Pair) -> None:
        """Restore a peer's missing credits: when no answers are due any more, mapping it anew restores all."""
        if pair.is_evictable:
            pair.lacks = False
            if pair.place >= 0:
                self._evict(pair)
        if pair.has_more:
            self.wake(pair)

    def advance(self) -> None:
        """Send what can be sent, unless a handler runs, or this method is running."""
        if self._is_sending or not self._ready or self._host.handling_endpoint is not None:
            return
        ready = self._ready
        self._is_sending = True
        try:
            while ready:
                pair = ready[0]
                put = self._try(pair)
                if put is _FULL:
                    break
                ready.popleft()
                if put is _SENT and pair.has_more:
                    ready.append(pair)
                else:
                    pair.is_ready = False
        finally:
            self._is_sending = False
        if ready and not self._is_seeking:
            self._is_seeking = True
            drive(self._seek_room())

    def forsaken(self) -> list[Pair]:
        """Return the peers that have all credits despite unanswered requests: AM-II's library knows of their
        restart."""
        left, most = self._endpoint.credits, self._credits
        return [pair for pair in self._placed if pair.unanswered and left(pair.place) == most]

    async def _seek_room(self) -> None:
        # During a handler, whoever polls continues when the handler has ended.
        while self._ready and self._host.handling_endpoint is None:
            await self._endpoint.wait_for_room(self._ready[0].place)
            self.advance()
        self._is_seeking = False

    def _try(self, pair: Pair) -> SendResult:
        """Try to send the first item of a peer's line."""
        if not pair.has_more or (pair.place < 0 and not self._lead(pair)):
            return _HELD
        if not pair.is_open:
            return _HELD if pair.is_announced else self._announce(pair)
        if pair.run >= WINDOW:
            return _HELD
        queue = pair.queue
        what = queue.popleft()
        if isinstance(what, Outgoing):
            size = len(what.data)
            if size <= _MAX_SHORT:
                put = self._short(pair, what)
            elif size <= self._max_eager:
                put = self._eager(pair, what)
            else:
                put = self._request(pair, OFFER, what.number, what.context, what.tag, size)
        elif isinstance(what, Chunk):
            put = self._chunk(pair, what)
        else:
            put = self._request(pair, what.handler, *what.arguments)
        if put is not _SENT:
            queue.appendleft(what)
        return put

    def _announce(self, pair: Pair) -> SendResult:
        """State our session, and ask for the peer's."""
        pair.is_announced = True
        put = self._request(pair, HELLO, pair.unheard)
        if put is not _SENT:
            pair.is_announced = False
            return put
        pair.said = pair.unheard
        if pair.notices_left:
            pair.notices_left -= 1
        return put

    def _short(self, pair: Pair, message: Outgoing) -> SendResult:
        data, number = message.data, message.number
        size = len(data)
        count = size + 3 >> 2
        words = _UNPACK[count](data if size == count << 2 else bytes(data).ljust(count << 2, b"\0"))
        del pair.sending[number]  # later events of the peer no longer affect it
        put = self._request(pair, SHORT, number, message.context << 16 | size, message.tag, *words)
        if put is _SENT:
            pair.release(message)
        else:
            pair.sending[number] = message
        return put

    def _eager(self, pair: Pair, message: Outgoing) -> SendResult:
        """Send one fragment; the others stay first in the line."""
        begin, size, number = message.sent, len(message.data), message.number
        data = message.data[begin : begin + self._fragment]
        message.sent = end = begin + len(data)
        if end < size:
            pair.queue.appendleft(message)
        else:
            del pair.sending[number]
        pair.asks()
        if self._endpoint.try_request_medium(
            pair.place, EAGER, data, *pair.outgoing, number, message.context, message.tag, size, begin
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

    def _chunk(self, pair: Pair, chunk: Chunk) -> SendResult:
        message, slot = chunk
        begin, number = message.sent, message.number
        data = message.data[begin : min(begin + SLOT, message.wanted)]
        if not data:
            return _SENT  # the other slot has had the rest
        message.sent = end = begin + len(data)
        if end == message.wanted:
            del pair.sending[number]
        pair.asks()
        if self._endpoint.try_request_bulk(pair.place, CHUNK, data, slot * SLOT, *pair.outgoing, number, slot, begin):
            if end == message.wanted:
                pair.release(message)
            return _SENT
        message.sent = begin
        pair.sending[number] = message
        return self._not_sent(pair)

    def _request(self, pair: Pair, handler: int, *words: int) -> SendResult:
        pair.asks()
        if self._endpoint.try_request(pair.place, handler, *pair.outgoing, *words):
            return _SENT
        return self._not_sent(pair)

    def _not_sent(self, pair: Pair) -> SendResult:
        """Return the reason why a request was not sent."""
        pair.has_not_asked()
        return _FULL if self._endpoint.credits(pair.place) else _HELD

    def _evict(self, pair: Pair) -> None:
        del self._placed[pair]
        self._endpoint.unmap(pair.place)
        pair.place = -1

    def _lead(self, pair: Pair) -> bool:
        """Map a place of the translation table to a peer. If there are fewer places than peers, they take turns."""
        endpoint = self._endpoint
        if len(self._placed) == endpoint.translations:
            other = next((one for one in self._placed if one.is_evictable), None)
            if other is None:
                self._placeless[pair] = None
                return False
            self._evict(other)
        pair.place = endpoint.map_any(self._host.name_of(pair.peer), TAG)
        self._placed[pair] = None
        return True

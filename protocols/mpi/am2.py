"""MPI's device on AM-II: active messages between one endpoint of each node, and matching by the library.

Three ways for a message. A short one's bytes are words of a request. Up to what medium messages carry within one peer's
credits, it goes at once, in fragments. A longer one is offered; when it has its receive, its sender is granted slots of the
receiver's staging region, and fills them by bulk messages, each again when the one before has been copied out.

Handlers copy, and answer every request; whatever else is to be sent waits in its peer's line until no handler runs. A line
stops where its peer has to answer first, and all do where the endpoint's ring is full; one message of each is sent in turn.

A send is over when AM-II has copied its last byte, a synchronous one when it has its receive. Before a node first sends to
another it asks who that is. What comes back unhandled, and a peer that says that it is somebody else now, end the session
(`am2_pairs`): what was under way fails, and the next message begins a new one.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Coroutine
from enum import Enum
from functools import partial
from typing import Final

from protocols.am2.host.errors import Returned, Status
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.names import EndpointName
from protocols.am2.host.token import Token
from protocols.core.completion import Completion
from protocols.mpi.am2_pairs import MASK, WINDOW, Fragment, Head, Incoming, Outgoing, Pair, Piece, Session, Word
from protocols.mpi.am2_staging import SLOT, Staging
from protocols.mpi.device import Device
from protocols.mpi.errors import ERR_PROC_FAILED, Envelope, MPIError
from protocols.mpi.matching import CONTEXTS, Arrival, MatchingByLibrary

NUMBER: Final = 0
"""Of MPI's endpoint on every node."""
TAG: Final = 0x4D50_492D_414D_3200
"""Of all of them; ours, as is all of this."""

# Handlers of requests: all begin with the head.
_HELLO: Final = 1
_SHORT: Final = 2  # number, context and length, tag, words
_EAGER: Final = 3  # number, context, tag, length, offset; data
_OFFER: Final = 4  # number, context, tag, length
_GRANT: Final = 5  # number, bytes wanted, slots
_PIECE: Final = 6  # number, slot, offset; data
_CLEAR: Final = 7  # nothing of a former session is under way any more
# Of replies: all begin with the request's head.
_TAKEN: Final = 8
_PLACED: Final = 9  # number, slot
_MEET: Final = 10  # the session that it should have been for

_MOST_WORDS: Final = 9  # that AM-II's sixteen leave
_UNPACK: Final = tuple(struct.Struct(f"!{count}I").unpack for count in range(_MOST_WORDS + 1))
_PACK: Final = tuple(struct.Struct(f"!{count}I").pack for count in range(_MOST_WORDS + 1))
_REFUSALS: Final = 10_000
"""Round trips for which a node may be there, and its endpoint not yet."""
_ABSENT: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
_OFFERED: Final = -1


class _Put(Enum):
    """What became of an attempt to send: some of it went; the peer has to answer first; there is no room for any."""

    SENT = 0
    HELD = 1
    FULL = 2


_SENT: Final = _Put.SENT
_HELD: Final = _Put.HELD
_FULL: Final = _Put.FULL


class Am2Endpoint(MatchingByLibrary):
    """AM-II's host library as MPI wants it. Implements `MatchingEndpoint`."""

    def __init__(self, host: ActiveMessages) -> None:
        """Raises ValueError where the node has endpoints already."""
        super().__init__()
        self.rank = host.node
        self.size = host.size
        self.contexts = CONTEXTS
        self.most_tag = (1 << 31) - 1
        self.most_bytes = MASK
        self._host = host
        self._bundle = host.allocate_bundle()
        self._endpoint = endpoint = self._bundle.allocate_endpoint()
        if endpoint.name.endpoint != NUMBER:
            endpoint.free()
            raise ValueError(f"MPI's endpoint is a node's first: there are {endpoint.name.endpoint} already")
        self._fragment = host.most_medium
        self._most_eager = host.settings.credits * host.most_medium
        self._pairs: dict[int, Pair] = {}
        self._placed: dict[Pair, None] = {}  # whom places of the translation table lead to
        self._placeless: deque[Pair] = deque()  # for whom there was none
        self._ready: deque[Pair] = deque()  # who may be sent something, in turn
        self._is_sending = False
        self._is_seeking = False  # room
        self._staging = Staging()
        self._waiting: deque[tuple[Pair, int, Incoming]] = deque()  # for slots
        for handler, function in (
            (_HELLO, self._hello), (_SHORT, self._short), (_EAGER, self._eager), (_OFFER, self._offer),
            (_GRANT, self._granted), (_PIECE, self._piece), (_CLEAR, self._clear), (_TAKEN, self._taken),
            (_PLACED, self._taken), (_MEET, self._met),
        ):  # fmt: skip
            endpoint.set_handler(handler, function)
        endpoint.error_handler = self._returned
        endpoint.tag = TAG
        _carry(self._serve())

    # What MPI asks for.

    def send(self, destination: int, context: int, tag: int, data: memoryview, over: Completion[Envelope]) -> bool:
        size = len(data)
        if destination == self.rank:
            arrival = self.matching.arrive(destination, context, tag, size)
            arrival.place[:] = data[: len(arrival.place)]
            over.complete(Envelope(destination, tag, size))
            self.matching.arrived(arrival)
            return True
        pair = self._pairs.get(destination) or self._pair(destination)
        message = pair.message(context, tag, data, over)
        if pair.queue or not pair.is_open or self._is_sending or self._host.handling is not None:
            self._put_in_line(pair, message)
        else:
            pair.queue.append(message)
            if self._put(pair) is not _SENT or pair.queue:
                self._make_ready(pair)
                self._advance()
        return True

    # From the peers, while they are polled for.

    def _hello(self, token: Token, incarnation: int, epoch: int, *unknown: int) -> None:
        pair = self._pair(token.source.node)
        self._meet(pair, (incarnation, epoch))
        token.reply(_MEET, incarnation, epoch, *unknown, *pair.ours)

    def _short(
        self, token: Token, a: int, b: int, c: int, d: int, number: int, what: int, tag: int, *words: int
    ) -> None:
        pair = self._sender(token, (a, b, c, d))
        if pair is not None:
            length = what & 0xFFFF
            self._come(pair, number, Fragment(what >> 16, tag, length, 0, _PACK[len(words)](*words)[:length]))

    def _eager(
        self, token: Token, data: memoryview, a: int, b: int, c: int, d: int, number: int, context: int, tag: int,
        length: int, offset: int,
    ) -> None:  # fmt: skip
        pair = self._sender(token, (a, b, c, d))
        if pair is not None:
            self._come(pair, number, Fragment(context, tag, length, offset, data))

    def _offer(
        self, token: Token, a: int, b: int, c: int, d: int, number: int, context: int, tag: int, length: int
    ) -> None:
        pair = self._sender(token, (a, b, c, d))
        if pair is not None:
            self._come(pair, number, Fragment(context, tag, length, _OFFERED, b""))

    def _granted(self, token: Token, a: int, b: int, c: int, d: int, number: int, wanted: int, *slots: int) -> None:
        """Our offer has its receive."""
        pair = self._sender(token, (a, b, c, d))
        message = None if pair is None else pair.sending.get(number)
        if pair is None or message is None:
            return
        message.wanted = wanted
        if not wanted:
            self._end_send(pair, message)
        for slot in slots:
            self._put_in_line(pair, Piece(message, slot))

    def _piece(
        self, token: Token, data: memoryview, a: int, b: int, c: int, d: int, number: int, slot: int, offset: int
    ) -> None:
        head = (a, b, c, d)
        pair = self._sender(token, head, silent=True)
        if pair is None:
            return
        incoming = pair.arriving.get(number)
        if incoming is not None:
            incoming.arrival.place[offset : offset + len(data)] = data
        token.reply(_PLACED, *head, number, slot)
        if incoming is not None:
            incoming.missing -= len(data)
            if not incoming.missing:
                del pair.arriving[number]
                self._staging.give_back(incoming.slots)
                self.matching.arrived(incoming.arrival)
                self._grant()

    def _clear(self, token: Token, a: int, b: int, c: int, d: int) -> None:
        pair = self._sender(token, (a, b, c, d))
        if pair is not None:
            self._staging.release(pair.peer)
            self._grant()

    def _taken(self, token: Token, a: int, b: int, c: int, d: int, number: int = 0, slot: int = 0) -> None:
        """A request is answered. slot: which it had filled."""
        pair, head = self._pairs[token.source.node], (a, b, c, d)
        if number and head == pair.outgoing:
            message = pair.sending.get(number)
            if message is not None and message.sent < message.wanted:
                pair.queue.append(Piece(message, slot))
        self._answered(pair, head)

    def _met(self, token: Token, a: int, b: int, c: int, d: int, incarnation: int, epoch: int) -> None:
        """The peer says who it is."""
        pair = self._pairs[token.source.node]
        is_ours = (a, b) == pair.ours
        self._answered(pair, (a, b, c, d))
        if is_ours:
            self._meet(pair, (incarnation, epoch))

    def _returned(self, returned: Returned) -> None:
        """A request or an answer has come back."""
        pair = self._pair(returned.destination.node)
        a, b, c, d = returned.arguments[:4]
        status, head = returned.status, (a, b, c, d)
        if returned.is_reply:
            # The peer waits for it, and will for ever if it is not told.
            if status is Status.UNREACHABLE and pair.is_open and (a, b) == pair.theirs:
                self._lose(pair, _WHY[status])
            return
        is_current = head == pair.outgoing
        self._answered(pair, head)
        if not is_current:
            return
        if returned.handler == _HELLO and status in _ABSENT and pair.queue and pair.refusals < _REFUSALS:
            pair.refusals += 1
            pair.is_told = False
            self._make_ready(pair)
        else:
            self._lose(pair, _WHY.get(status, f"has sent a message back: {status.name}"))

    # Sessions.

    def _pair(self, peer: int) -> Pair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = Pair(peer, self._host.incarnation)
        return pair

    def _sender(self, token: Token, head: Head, silent: bool = False) -> Pair | None:
        """Who has sent a request that begins so, if it is of the sessions that there are; else it is told who we are.
        silent: it is not told that its request is taken."""
        pair = self._pairs.get(token.source.node) or self._pair(token.source.node)
        if head != pair.incoming and not (self._meet(pair, head[:2]) and head == pair.incoming):
            token.reply(_MEET, *head, *pair.ours)
            return None
        if not silent:
            token.reply(_TAKEN, *head)
        return pair

    def _meet(self, pair: Pair, theirs: Session) -> bool:
        """The peer says that it is this one. False: it was, and is another one now."""
        if theirs != pair.theirs:
            if not pair.is_news(theirs):
                return False
            if pair.theirs is not None and theirs[0] != pair.theirs[0]:
                pair.former = 0  # nobody is there who could answer
                self._staging.release(pair.peer)
            if pair.is_open:
                self._lose(pair, "has started again", renew=False)
        if not pair.is_open:
            pair.open(theirs)
            self._owe(pair)
            if pair.queue:
                self._make_ready(pair)
        return True

    def _lose(self, pair: Pair, why: str, renew: bool = True) -> None:
        """Nothing that was under way will come to its end. renew: the peer is to know that."""
        sending, arriving = pair.end(renew)
        for incoming in arriving:
            self._staging.hold(pair.peer, incoming.slots)
        for message in sending:
            message.over.fail(_failure(pair, why))
        for incoming in arriving:
            self.matching.lost(incoming.arrival, _failure(pair, why))
        self.matching.fail_synchronous(pair.peer, _failure(pair, why))
        if pair.tellings and renew:
            self._make_ready(pair)

    def _answered(self, pair: Pair, head: Head) -> None:
        pair.answered(head)
        if pair.owes:
            self._owe(pair)
        if pair.queue and not pair.is_ready:
            self._make_ready(pair)
        elif self._placeless and pair.is_idle:
            self._make_ready(self._placeless.popleft())

    def _owe(self, pair: Pair) -> None:
        """Say that nothing of a former session is under way any more, if one waits for that, when it is so."""
        if pair.owes and pair.is_open and not pair.former:
            pair.owes = False
            self._put_in_line(pair, Word(_CLEAR))

    # Messages that come.

    def _come(self, pair: Pair, number: int, fragment: Fragment) -> None:
        ahead = pair.ahead(number)
        if not ahead:
            self._begin(pair, fragment)
            while pair.early and (kept := pair.early.pop(pair.expected, None)) is not None:
                number = pair.expected
                self._begin(pair, kept[0])
                for fragment in kept[1:]:
                    self._more(pair, number, fragment)
        elif ahead > 0:
            kept_data = fragment._replace(data=bytes(fragment.data))
            pair.early.setdefault(number, []).append(kept_data)
        else:
            self._more(pair, number, fragment)

    def _begin(self, pair: Pair, fragment: Fragment) -> None:
        """The next message, of which this has come first."""
        context, tag, length, offset, data = fragment
        number, pair.expected = pair.expected, pair.expected + 1 & MASK
        if len(data) == length and offset >= 0:
            arrival = self.matching.arrive(pair.peer, context, tag, length)
            place = arrival.place
            place[:] = data if len(place) == length else data[: len(place)]
            self.matching.arrived(arrival)
            return
        incoming = pair.arriving[number] = Incoming(length)
        if offset >= 0:
            incoming.arrival = self.matching.arrive(pair.peer, context, tag, length)
            self._more(pair, number, fragment)
            return
        wanted = partial(self._wanted, pair, number, incoming)
        incoming.arrival = self.matching.arrive(pair.peer, context, tag, length, wanted)

    def _more(self, pair: Pair, number: int, fragment: Fragment) -> None:
        incoming = pair.arriving[number]
        _, _, _, offset, data = fragment
        place = incoming.arrival.place[offset : offset + len(data)]
        place[:] = data[: len(place)]
        incoming.missing -= len(data)
        if not incoming.missing:
            del pair.arriving[number]
            self.matching.arrived(incoming.arrival)

    def _wanted(self, pair: Pair, number: int, incoming: Incoming, arrival: Arrival) -> None:
        """A message that was offered has its receive."""
        incoming.arrival = arrival
        incoming.missing = len(arrival.place)
        if incoming.missing:
            self._waiting.append((pair, number, incoming))
            self._grant()
            return
        del pair.arriving[number]
        self._put_in_line(pair, Word(_GRANT, (number, 0)))
        self.matching.arrived(arrival)

    def _grant(self) -> None:
        """Hand out slots to those that wait for some."""
        waiting = self._waiting
        while waiting:
            pair, number, incoming = waiting[0]
            if pair.arriving.get(number) is incoming:
                incoming.slots = self._staging.take(incoming.missing)
                if not incoming.slots:
                    return
                if self._endpoint.segment is None:
                    self._endpoint.segment = self._staging.memory
                self._put_in_line(pair, Word(_GRANT, (number, incoming.missing, *incoming.slots)))
            waiting.popleft()

    # What is to be sent.

    def _put_in_line(self, pair: Pair, what: Outgoing | Piece | Word) -> None:
        pair.queue.append(what)
        self._make_ready(pair)
        self._advance()

    def _make_ready(self, pair: Pair) -> None:
        if not pair.is_ready:
            pair.is_ready = True
            self._ready.append(pair)

    def _advance(self) -> None:
        """Send what can be sent, unless a handler runs, or this is at it already."""
        if self._is_sending or self._host.handling is not None:
            return
        ready = self._ready
        self._is_sending = True
        try:
            while ready:
                pair = ready[0]
                put = self._put(pair)
                if put is _FULL:
                    break
                ready.popleft()
                if put is _SENT and (pair.queue or pair.tellings):
                    ready.append(pair)
                else:
                    pair.is_ready = False
        finally:
            self._is_sending = False
        if ready and not self._is_seeking:
            _carry(self._seek_room())

    def _put(self, pair: Pair) -> _Put:
        """Try to send a peer what is first in its line."""
        if pair.place < 0 and not self._lead(pair):
            return _HELD
        if not pair.is_open:
            return _HELD if pair.is_told or not (pair.queue or pair.tellings) else self._tell(pair)
        queue = pair.queue
        if not queue:
            return _HELD
        if pair.run >= WINDOW:
            return _HELD
        what = queue.popleft()
        if isinstance(what, Outgoing):
            size = len(what.data)
            if size <= 4 * _MOST_WORDS:
                put = self._put_short(pair, what)
            elif size <= self._most_eager:
                put = self._put_eager(pair, what)
            else:
                put = self._request(pair, _OFFER, what.number, what.context, what.tag, size)
        elif isinstance(what, Piece):
            put = self._put_piece(pair, what)
        else:
            put = self._request(pair, what.handler, *what.arguments)
        if put is not _SENT:
            queue.appendleft(what)
        return put

    def _tell(self, pair: Pair) -> _Put:
        """Say who we are, and ask who the peer is."""
        pair.is_told = True
        put = self._request(pair, _HELLO)
        if put is not _SENT:
            pair.is_told = False
        elif pair.tellings:
            pair.tellings -= 1
        return put

    def _put_short(self, pair: Pair, message: Outgoing) -> _Put:
        data = message.data
        size = len(data)
        count = size + 3 >> 2
        words = _UNPACK[count](data if size == count << 2 else bytes(data).ljust(count << 2, b"\0"))
        del pair.sending[message.number]  # what happens meanwhile has nothing to do with it any more
        put = self._request(pair, _SHORT, message.number, message.context << 16 | size, message.tag, *words)
        if put is _SENT:
            message.over.complete(Envelope(pair.peer, message.tag, size))
        else:
            pair.sending[message.number] = message
        return put

    def _put_eager(self, pair: Pair, message: Outgoing) -> _Put:
        """One fragment of it."""
        begin, size = message.sent, len(message.data)
        data = message.data[begin : begin + self._fragment]
        message.sent = end = begin + len(data)
        pair.unanswered += 1
        pair.run += 1
        if end == size:
            del pair.sending[message.number]
        else:
            pair.queue.appendleft(message)
        if self._endpoint.try_request_medium(
            pair.place, _EAGER, data, *pair.outgoing, message.number, message.context, message.tag, size, begin
        ):
            if end == size:
                message.over.complete(Envelope(pair.peer, message.tag, size))
            return _SENT
        message.sent = begin
        if end == size:
            pair.sending[message.number] = message
        else:
            pair.queue.popleft()
        return self._not_sent(pair)

    def _put_piece(self, pair: Pair, piece: Piece) -> _Put:
        message, slot = piece
        begin = message.sent
        data = message.data[begin : min(begin + SLOT, message.wanted)]
        if not data:
            return _SENT  # the other slot has had the rest
        message.sent = begin + len(data)
        pair.unanswered += 1
        pair.run += 1
        if self._endpoint.try_request_bulk(
            pair.place, _PIECE, data, slot * SLOT, *pair.outgoing, message.number, slot, begin
        ):
            if message.sent == message.wanted and pair.sending.get(message.number) is message:
                self._end_send(pair, message)
            return _SENT
        message.sent = begin
        return self._not_sent(pair)

    def _end_send(self, pair: Pair, message: Outgoing) -> None:
        del pair.sending[message.number]
        message.over.complete(Envelope(pair.peer, message.tag, len(message.data)))

    def _request(self, pair: Pair, handler: int, *words: int) -> _Put:
        pair.unanswered += 1
        pair.run += 1
        if self._endpoint.try_request(pair.place, handler, *pair.outgoing, *words):
            return _SENT
        return self._not_sent(pair)

    def _not_sent(self, pair: Pair) -> _Put:
        """Why a request was not."""
        pair.unanswered -= 1
        pair.run -= 1
        endpoint = self._endpoint
        if endpoint.credits(pair.place):
            return _FULL
        if pair.unanswered:
            return _HELD
        # All credits are with requests of former sessions, whose answers may be lost: mapped anew, it has all.
        endpoint.unmap(pair.place)
        endpoint.map(pair.place, EndpointName(pair.peer, NUMBER), TAG)
        return _FULL

    def _lead(self, pair: Pair) -> bool:
        """Have a place of the translation table lead to a peer. There may be fewer than peers: then they take turns."""
        endpoint = self._endpoint
        if len(self._placed) == endpoint.translations:
            idle = next((one for one in self._placed if one.is_idle), None)
            if idle is None:
                self._placeless.append(pair)
                return False
            del self._placed[idle]
            endpoint.unmap(idle.place)
            idle.place = -1
        pair.place = endpoint.map_any(EndpointName(pair.peer, NUMBER), TAG)
        self._placed[pair] = None
        return True

    # What goes on by itself.

    async def _serve(self) -> None:
        """Handle what comes, and go on with what can go on then."""
        bundle, endpoint, host = self._bundle, self._endpoint, self._host
        while True:
            changed: Completion[None] = Completion("a message for MPI")
            bundle.changed = changed
            if host.handling is None:
                if not endpoint.poll():
                    self._look_for_restarts()
                if self._ready:
                    self._advance()
            await changed

    async def _seek_room(self) -> None:
        self._is_seeking = True
        while self._ready:
            await self._endpoint.wait_for_room(self._ready[0].place)
            self._advance()
        self._is_seeking = False

    def _look_for_restarts(self) -> None:
        """A peer has all credits, and has not answered all: the library has heard of another incarnation."""
        left, most = self._endpoint.credits, self._host.settings.credits
        for pair in [pair for pair in self._placed if pair.unanswered and left(pair.place) == most]:
            self._lose(pair, "has started again")


def device(host: ActiveMessages) -> Device:
    """For a node's communicators; one for each host library, and before its other endpoints."""
    return Device(Am2Endpoint(host))


_WHY: Final = {
    Status.UNREACHABLE: "has acknowledged nothing for as long as the settings allow, or has started again",
    Status.BAD_ENDPOINT: "has no endpoint for MPI",
    Status.BAD_TAG: "has no endpoint for MPI where it should be",
}


def _failure(pair: Pair, why: str) -> MPIError:
    return MPIError(ERR_PROC_FAILED, f"node {pair.peer} {why}: whether a message sent has arrived is not known")


def _carry(work: Coroutine[Completion[None], None, None]) -> None:
    """Carry a coroutine on for as long as it has nothing to wait for, and again when that is done."""
    try:
        awaited = work.send(None)
    except StopIteration:
        return
    awaited.add_callback(lambda _: _carry(work))

"""What MPI has to send to each peer, in a line for each: messages, the pieces of long ones, and words beside them.

A line stops where its peer has to answer first: it has all of AM-II's credits, a whole window waits for answers, or it has
not said yet who it is. All stop where the endpoint's ring is full. Else one thing of each line goes in turn; none while a
handler runs, which may only reply.

What a request holds is written here, what becomes of it in `endpoint`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Coroutine
from enum import Enum
from typing import Final

from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.core.completion import Completion
from protocols.mpi.am2.pairs import WINDOW, Outgoing, Pair, Piece, Word
from protocols.mpi.am2.staging import SLOT
from protocols.mpi.errors import Envelope

TAG: Final = 0x4D50_492D_414D_3200
"""Of all of them; ours, as is all of this."""

# Handlers of requests, which all begin with the head; what follows.
HELLO: Final = 1
"""How many of the sender's answers have come back to it."""
SHORT: Final = 2
"""Number, context and length, tag, the data as words."""
EAGER: Final = 3
"""Number, context, tag, length, offset of the data."""
OFFER: Final = 4
"""Number, context, tag, length."""
GRANT: Final = 5
"""Number, bytes that the receive has room for, slots of the staging region."""
PIECE: Final = 6
"""Number, slot, offset of the data."""
CLEAR: Final = 7
"""Nothing of a former session is under way any more."""
# Of replies, which all begin with the request's head.
TAKEN: Final = 8
PLACED: Final = 9
"""Number, slot: it may be filled again."""
MEET: Final = 10
"""The session of who replies, and as HELLO."""

_MOST_WORDS: Final = 9  # that AM-II's sixteen leave
_MOST_SHORT: Final = 4 * _MOST_WORDS
_UNPACK: Final = tuple(struct.Struct(f"!{count}I").unpack for count in range(_MOST_WORDS + 1))


class Put(Enum):
    """What became of an attempt to send: some of it went; the peer has to answer first; there is no room for any."""

    SENT = 0
    HELD = 1
    FULL = 2


_SENT: Final = Put.SENT
_HELD: Final = Put.HELD
_FULL: Final = Put.FULL


class Lines:
    """Those of one endpoint."""

    __slots__ = (
        "_credits", "_endpoint", "_fragment", "_host", "_is_seeking", "_is_sending", "_most_eager", "_placed", "_placeless",
        "_ready",
    )  # fmt: skip

    def __init__(self, host: ActiveMessages, endpoint: Endpoint) -> None:
        self._host = host
        self._endpoint = endpoint
        self._fragment = host.most_medium
        self._credits = host.settings.credits
        self._most_eager = host.settings.credits * host.most_medium
        self._placed: dict[Pair, None] = {}  # whom places of the translation table lead to
        self._placeless: dict[Pair, None] = {}  # for whom there was none, in turn
        self._ready: deque[Pair] = deque()  # who may be sent something, in turn
        self._is_sending = False
        self._is_seeking = False  # room

    def put(self, pair: Pair, what: Outgoing | Piece | Word) -> None:
        """Send it, or let it wait for its turn."""
        queue = pair.queue
        is_first = not queue and not self._ready and not self._is_sending and self._host.handling is None
        queue.append(what)
        if is_first and self._try(pair) is _SENT and not queue:
            return
        self.wake(pair)
        self.advance()

    def wake(self, pair: Pair) -> None:
        """It may be that it can be sent something."""
        if not pair.is_ready:
            pair.is_ready = True
            self._ready.append(pair)

    def answered(self, pair: Pair) -> None:
        """It has answered a request."""
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
        """It lacks credits: mapped anew, when no answer can come any more, it has all."""
        if pair.is_evictable:
            pair.lacks = False
            if pair.place >= 0:
                self._evict(pair)
        if pair.has_more:
            self.wake(pair)

    def advance(self) -> None:
        """Send what can be sent, unless a handler runs, or this is at it already."""
        if self._is_sending or not self._ready or self._host.handling is not None:
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
            carry(self._seek_room())

    def forsaken(self) -> list[Pair]:
        """Peers that have all credits though they have not answered all: the library has heard that they are others now."""
        left, most = self._endpoint.credits, self._credits
        return [pair for pair in self._placed if pair.unanswered and left(pair.place) == most]

    async def _seek_room(self) -> None:
        while self._ready and self._host.handling is None:  # else whoever polls goes on when the handler has ended
            await self._endpoint.wait_for_room(self._ready[0].place)
            self.advance()
        self._is_seeking = False

    def _try(self, pair: Pair) -> Put:
        """Try to send a peer what is first in its line."""
        if not pair.has_more or (pair.place < 0 and not self._lead(pair)):
            return _HELD
        if not pair.is_open:
            return _HELD if pair.is_told else self._tell(pair)
        if pair.run >= WINDOW:
            return _HELD
        queue = pair.queue
        what = queue.popleft()
        if isinstance(what, Outgoing):
            size = len(what.data)
            if size <= _MOST_SHORT:
                put = self._short(pair, what)
            elif size <= self._most_eager:
                put = self._eager(pair, what)
            else:
                put = self._request(pair, OFFER, what.number, what.context, what.tag, size)
        elif isinstance(what, Piece):
            put = self._piece(pair, what)
        else:
            put = self._request(pair, what.handler, *what.arguments)
        if put is not _SENT:
            queue.appendleft(what)
        return put

    def _tell(self, pair: Pair) -> Put:
        """Say who we are, and ask who the peer is."""
        pair.is_told = True
        put = self._request(pair, HELLO, pair.unheard)
        if put is not _SENT:
            pair.is_told = False
            return put
        pair.said = pair.unheard
        if pair.tellings:
            pair.tellings -= 1
        return put

    def _short(self, pair: Pair, message: Outgoing) -> Put:
        data, number = message.data, message.number
        size = len(data)
        count = size + 3 >> 2
        words = _UNPACK[count](data if size == count << 2 else bytes(data).ljust(count << 2, b"\0"))
        del pair.sending[number]  # what happens to the peer meanwhile has nothing to do with it any more
        put = self._request(pair, SHORT, number, message.context << 16 | size, message.tag, *words)
        if put is _SENT:
            message.over.complete(Envelope(pair.peer, message.tag, size))
        else:
            pair.sending[number] = message
        return put

    def _eager(self, pair: Pair, message: Outgoing) -> Put:
        """One fragment of it; the others stay first in the line."""
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
                message.over.complete(Envelope(pair.peer, message.tag, size))
            return _SENT
        message.sent = begin
        if end < size:
            pair.queue.popleft()
        else:
            pair.sending[number] = message
        return self._not_sent(pair)

    def _piece(self, pair: Pair, piece: Piece) -> Put:
        message, slot = piece
        begin, number = message.sent, message.number
        data = message.data[begin : min(begin + SLOT, message.wanted)]
        if not data:
            return _SENT  # the other slot has had the rest
        message.sent = end = begin + len(data)
        if end == message.wanted:
            del pair.sending[number]
        pair.asks()
        if self._endpoint.try_request_bulk(pair.place, PIECE, data, slot * SLOT, *pair.outgoing, number, slot, begin):
            if end == message.wanted:
                message.over.complete(Envelope(pair.peer, message.tag, len(message.data)))
            return _SENT
        message.sent = begin
        pair.sending[number] = message
        return self._not_sent(pair)

    def _request(self, pair: Pair, handler: int, *words: int) -> Put:
        pair.asks()
        if self._endpoint.try_request(pair.place, handler, *pair.outgoing, *words):
            return _SENT
        return self._not_sent(pair)

    def _not_sent(self, pair: Pair) -> Put:
        """Why a request was not."""
        pair.has_not_asked()
        return _FULL if self._endpoint.credits(pair.place) else _HELD

    def _evict(self, pair: Pair) -> None:
        del self._placed[pair]
        self._endpoint.unmap(pair.place)
        pair.place = -1

    def _lead(self, pair: Pair) -> bool:
        """Have a place of the translation table lead to a peer. There may be fewer than peers: then they take turns."""
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


def carry(work: Coroutine[Completion[None], None, None]) -> None:
    """Carry a coroutine on for as long as it has nothing to wait for, and again when that is done."""

    def go_on(_: object = None) -> None:
        try:
            awaited = work.send(None)
        except StopIteration:
            return
        awaited.add_callback(go_on)

    go_on()

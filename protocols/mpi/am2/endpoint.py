"""MPI on AM-II: active messages between one endpoint of each node, with matching by the library.

A message takes one of three ways. A short one's bytes are words of a request. Up to the size that medium messages carry
within one peer's credits, it is sent at once, in fragments. A longer one is offered; when it is matched, the receiver
grants its sender slots of the receiver's staging region, and the sender fills them by bulk messages, each again when
its contents have been copied out.

A send completes when AM-II has copied its last byte, a synchronous one when it is matched. The message has arrived when
all of its requests have been answered: then the receiver's library has it. Before a node first sends to another, it
asks for its identity. A returned request, or a peer with a new identity, ends the session (`pairs`): transfers in
progress fail, and the next message begins a new session.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from protocols.active_messages.am_errors import Returned, Status
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.core.completion import Completion, drive
from protocols.mpi.am2 import pairs
from protocols.mpi.am2.pairs import MASK, Chunk, Fragment, Head, Incoming, Lines, Pair, Session, Word
from protocols.mpi.am2.staging_area import Staging
from protocols.mpi.device import Dispatch
from protocols.mpi.matching import CONTEXTS, Arrival, SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, Envelope, MPIError

_PACK: Final = tuple(struct.Struct(f"!{count}I").pack for count in range(10))
_REFUSALS: Final = 10_000
"""Round trips for which a node may be present while its endpoint is not yet (ours)."""
_ABSENT: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
_OFFERED: Final = -1
_WHY: Final = {
    Status.UNREACHABLE: "has acknowledged nothing within the time limit, or has restarted",
    Status.BAD_ENDPOINT: "has no endpoint for MPI",
    Status.BAD_TAG: "has another endpoint in the place of MPI's",
}


class Am2Endpoint(SoftwareMatchingEndpoint):
    """Adapter of AM-II's host library to MPI. Implements `MatchingEndpoint`."""

    def __init__(self, host: ActiveMessages) -> None:
        """Raises ValueError if the node has endpoints already."""
        super().__init__()
        self.rank = host.rank
        self.size = host.ranks
        self.contexts = CONTEXTS
        self.max_tag = (1 << 31) - 1
        self.max_message_size = MASK
        self._host = host
        self._bundle = host.allocate_bundle()
        self._endpoint = endpoint = self._bundle.allocate_endpoint()
        if endpoint.name != host.name_of(host.rank):
            self._bundle.free()
            raise ValueError("MPI's endpoint is a process's first, and this one has others already")
        self._lines = Lines(host, endpoint)
        self._pairs: dict[int, Pair] = {}
        self._staging = Staging()
        self._waiting: deque[tuple[Pair, int, Incoming]] = deque()  # messages that wait for slots
        for handler, function in (
            (pairs.HELLO, self._hello), (pairs.SHORT, self._short), (pairs.EAGER, self._eager),
            (pairs.OFFER, self._offer), (pairs.GRANT, self._granted), (pairs.CHUNK, self._chunk),
            (pairs.CLEAR, self._clear), (pairs.TAKEN, self._taken), (pairs.PLACED, self._placed), (pairs.MEET, self._met),
        ):  # fmt: skip
            endpoint.set_handler(handler, function)
        endpoint.error_handler = self._returned
        endpoint.tag = pairs.TAG
        if host.is_restarted:
            self._announce()
        drive(self._serve())

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: Dispatch) -> bool:
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
            return True
        pair = self._pairs.get(destination) or self._pair(destination)
        self._lines.put(pair, pair.message(context, tag, data, completion))
        return True

    async def _serve(self) -> None:
        """Handle incoming messages, and continue the transfers that they permit."""
        bundle, endpoint, host, advance = self._bundle, self._endpoint, self._host, self._lines.advance
        while True:
            change: Completion[None] = Completion("a message for MPI")
            bundle.change = change
            if host.handling_endpoint is None:
                if not endpoint.handle():
                    for pair in self._lines.forsaken():
                        self._lose(pair, "has restarted", [number for number, _ in pair.released])
                advance()
            await change

    # Handlers of requests, each of which replies.

    def _hello(self, token: Token, *words: int) -> None:
        a, b, c, d, unheard = words
        pair = self._pair(self._host.rank_of(token.source))
        self._meet(pair, (a, b), unheard)
        token.reply(pairs.MEET, a, b, c, d, *pair.ours, pair.unheard)

    def _short(
        self, token: Token, a: int, b: int, c: int, d: int, number: int, what: int, tag: int, *data: int
    ) -> None:
        pair = self._sender(token, (a, b, c, d), number)
        if pair is not None:
            length = what & 0xFFFF
            self._come(pair, number, Fragment(what >> 16, tag, length, 0, _PACK[len(data)](*data)[:length]))

    def _eager(self, token: Token, data: memoryview, *words: int) -> None:
        a, b, c, d, number, context, tag, length, offset = words
        pair = self._sender(token, (a, b, c, d), number)
        if pair is not None:
            self._come(pair, number, Fragment(context, tag, length, offset, data))

    def _offer(self, token: Token, *words: int) -> None:
        a, b, c, d, number, context, tag, length = words
        pair = self._sender(token, (a, b, c, d), number)
        if pair is not None:
            self._come(pair, number, Fragment(context, tag, length, _OFFERED, b""))

    def _granted(self, token: Token, *words: int) -> None:
        """Handle a grant: our offer has been matched."""
        a, b, c, d, number, wanted, *slots = words
        pair = self._sender(token, (a, b, c, d))
        message = None if pair is None else pair.sending.get(number)
        if pair is None or message is None:
            return
        message.wanted = wanted
        for slot in slots:
            self._lines.put(pair, Chunk(message, slot))
        if not wanted:
            del pair.sending[number]
            message.completion.complete(Envelope(pair.peer, message.tag, len(message.data)))

    def _chunk(self, token: Token, data: memoryview, *words: int) -> None:
        a, b, c, d, number, _, offset = words
        pair = self._sender(token, (a, b, c, d), number, silent=True)
        if pair is None:
            return
        incoming = pair.arriving.get(number)
        if incoming is not None:
            incoming.arrival.buffer[offset : offset + len(data)] = data
        token.reply(pairs.PLACED, *words[:6])
        if incoming is not None:
            incoming.missing -= len(data)
            if not incoming.missing:
                del pair.arriving[number]
                self._staging.give_back(incoming.slots)
                self._grant()
                self.matching.complete(incoming.arrival)

    def _clear(self, token: Token, *words: int) -> None:
        a, b, c, d = words
        pair = self._sender(token, (a, b, c, d))
        if pair is not None:
            self._staging.release(pair.peer)
            self._grant()

    # Handlers of replies, and of returned messages.

    def _taken(self, token: Token, a: int, b: int, c: int, d: int) -> None:
        self._answered(self._pairs[self._host.rank_of(token.source)], (a, b, c, d))

    def _placed(self, token: Token, a: int, b: int, c: int, d: int, number: int, slot: int) -> None:
        pair, head = self._pairs[self._host.rank_of(token.source)], (a, b, c, d)
        message = pair.sending.get(number)
        if message is not None and head == pair.outgoing and message.sent < message.wanted:
            pair.queue.append(Chunk(message, slot))
        self._answered(pair, head)

    def _met(self, token: Token, *words: int) -> None:
        """Handle the peer's identity, and the message that it has not accepted, if any."""
        a, b, c, d, incarnation, epoch, unheard, *refused = words
        pair = self._pairs[self._host.rank_of(token.source)]
        if (a, b) == pair.ours:  # the session ends before this counts as an answer: the message has not arrived
            self._meet(pair, (incarnation, epoch), unheard, refused)
        self._answered(pair, (a, b, c, d))

    def _returned(self, returned: Returned) -> None:
        pair, status = self._pair(self._host.rank_of(returned.destination)), returned.status
        a, b, c, d = returned.arguments[:4]
        if returned.is_reply:
            # The peer would wait for it for ever if it were not told.
            if status is Status.UNREACHABLE and pair.theirs is not None and a == pair.theirs[0]:
                pair.unheard += 1
                if pair.is_open and (a, b) == pair.theirs:
                    self._lose(pair, _WHY[status], ())
                else:
                    self._owe(pair)
            return
        if (a, b, c, d) == pair.outgoing:
            if returned.handler == pairs.HELLO and status in _ABSENT and pair.queue and pair.refusals < _REFUSALS:
                pair.refusals += 1
                pair.is_announced = False
                self._lines.wake(pair)
            else:
                why = _WHY.get(status) or f"has sent a message back: {status.name.lower().replace('_', ' ')}"
                self._lose(pair, why, returned.arguments[4:5] if returned.handler in pairs.MESSAGES else ())
        self._answered(pair, (a, b, c, d))

    # Sessions.

    def _announce(self) -> None:
        """Tell all peers our session: what they sent to the former process or NIC is lost, and nobody has told them."""
        for peer in range(self.size):
            if peer != self.rank:
                pair = self._pair(peer)
                pair.notices_left = 1
                self._lines.wake(pair)

    def _pair(self, peer: int) -> Pair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = Pair(peer, self._host.incarnation, self._host.host_slot.turn)
        return pair

    def _sender(self, token: Token, head: Head, *number: int, silent: bool = False) -> Pair | None:
        """Return the sender of a request whose head names the present sessions. Any other sender is told our identity,
        and the number of its message. silent: no reply confirms the request."""
        peer = self._host.rank_of(token.source)
        pair = self._pairs.get(peer) or self._pair(peer)
        if head != pair.incoming and not (self._meet(pair, head[:2]) and head == pair.incoming):
            token.reply(pairs.MEET, *head, *pair.ours, pair.unheard, *number)
            return None
        if not silent:
            token.reply(pairs.TAKEN, *head)
        return pair

    def _meet(self, pair: Pair, theirs: Session, unheard: int = 0, refused: Sequence[int] = ()) -> bool:
        """Handle a peer's identity. unheard: number of its answers that were returned to it. refused: the number of a
        message that it has not accepted. Returns False if its session has changed."""
        if theirs != pair.theirs:
            if not pair.is_news(theirs):
                return False
            if pair.is_of_another(theirs):
                pair.is_another()
                self._staging.release(pair.peer)
            if pair.is_open:
                self._lose(pair, "has restarted", refused, renew=False)
        if unheard > pair.missed:
            pair.misses(unheard)
            self._lines.restore(pair)
        if not pair.is_open:
            pair.open(theirs)
            if pair.queue:
                self._lines.wake(pair)
        self._owe(pair)
        return True

    def _lose(self, pair: Pair, why: str, doubtful: Sequence[int], renew: bool = True) -> None:
        """End a session: fail everything in progress. doubtful: numbers of messages known not to be completely
        answered. renew: the peer is to be told."""
        if pair.released:
            doubtful = [*doubtful, *self._unanswered(pair)]
        ended = pair.end(renew, doubtful)
        for incoming in ended.arriving:
            self._staging.hold(pair.peer, incoming.slots)
        for delivered in ended.delivered:
            delivered.deliver()
        self.matching.fail_transfers(
            pair.peer,
            MPIError(ERR_PROC_FAILED, f"node {pair.peer} {why}: whether a message sent has arrived is not known"),
            sends=[*ended.doubtful, *(message.completion for message in ended.sending)],
            arrivals=[incoming.arrival for incoming in ended.arriving],
        )
        if renew:
            self._lines.wake(pair)

    def _unanswered(self, pair: Pair) -> list[int]:
        """Return the numbers of the session's messages that have an unanswered request."""
        unanswered = self._endpoint.unanswered(pair.place) if pair.place >= 0 else []
        return [
            arguments[4]
            for handler, arguments in unanswered
            if handler in pairs.MESSAGES and arguments[:4] == pair.outgoing
        ]

    def _answered(self, pair: Pair, head: Head) -> None:
        pair.answered(head)
        self._lines.answered(pair)
        if pair.owes:
            self._owe(pair)

    def _owe(self, pair: Pair) -> None:
        """Tell a peer that nothing of a former session is in flight any more, when that is so and the peer waits for
        it; and the number of returned answers, if it has changed."""
        if not pair.is_open:
            return
        if pair.unheard != pair.said:
            pair.said = pair.unheard
            self._lines.put(pair, Word(pairs.HELLO, (pair.unheard,)))
        if pair.owes and not pair.former:
            pair.owes = False
            self._lines.put(pair, Word(pairs.CLEAR))

    # Incoming messages.

    def _come(self, pair: Pair, number: int, fragment: Fragment) -> None:
        ahead = pair.ahead(number)
        if ahead > 0:
            pair.early.setdefault(number, []).append(fragment._replace(data=bytes(fragment.data)))
            return
        if ahead < 0:
            self._more(pair, number, fragment)
            return
        self._begin(pair, fragment)
        while pair.early and (kept := pair.early.pop(number := pair.expected, None)) is not None:
            self._begin(pair, kept[0])
            for one in kept[1:]:
                self._more(pair, number, one)

    def _begin(self, pair: Pair, fragment: Fragment) -> None:
        """Begin the next message, with the fragment that has arrived first."""
        context, tag, length, offset, data = fragment
        number, pair.expected = pair.expected, pair.expected + 1 & MASK
        if offset == _OFFERED:
            incoming = pair.arriving[number] = Incoming(length)
            wanted = partial(self._wanted, pair, number, incoming)
            incoming.arrival = self.matching.arrive(pair.peer, context, tag, length, wanted)
            return
        if len(data) == length:
            self.matching.arrive_whole(pair.peer, context, tag, data)
            return
        arrival = self.matching.arrive(pair.peer, context, tag, length)
        incoming = pair.arriving[number] = Incoming(length)
        incoming.arrival = arrival
        self._more(pair, number, fragment)

    def _more(self, pair: Pair, number: int, fragment: Fragment) -> None:
        incoming, offset, data = pair.arriving[number], fragment.offset, fragment.data
        place = incoming.arrival.buffer[offset : offset + len(data)]
        place[:] = data[: len(place)]
        incoming.missing -= len(data)
        if not incoming.missing:
            del pair.arriving[number]
            self.matching.complete(incoming.arrival)

    def _wanted(self, pair: Pair, number: int, incoming: Incoming, arrival: Arrival) -> None:
        """Accept an offered message, which has been matched."""
        incoming.arrival = arrival
        incoming.missing = len(arrival.buffer)
        if incoming.missing:
            self._waiting.append((pair, number, incoming))
            self._grant()
            return
        del pair.arriving[number]
        self._lines.put(pair, Word(pairs.GRANT, (number, 0)))
        self.matching.complete(arrival)

    def _grant(self) -> None:
        """Grant slots to messages that wait for some."""
        waiting = self._waiting
        while waiting:
            pair, number, incoming = waiting[0]
            if pair.arriving.get(number) is incoming:
                incoming.slots = self._staging.take(incoming.missing)
                if not incoming.slots:
                    return
                if self._endpoint.segment is None:
                    self._endpoint.segment = self._staging.memory
                self._lines.put(pair, Word(pairs.GRANT, (number, incoming.missing, *incoming.slots)))
            waiting.popleft()

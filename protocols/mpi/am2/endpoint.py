"""MPI on AM-II: active messages between one endpoint of each node, with matching by the library.

There are three message protocols. The bytes of a short message are words of a request. A message of up to the size that
medium messages carry within one peer's credits is eager: it is sent at once, in fragments. A longer message is offered
(rendezvous). When it is matched, the receiver grants the sender slots of its staging region. The sender fills them by bulk
messages, and fills a slot again when its contents have been copied out.

A send completes when AM-II has copied the last byte, a synchronous send when the message is matched. A message has arrived
when all of its requests have been answered, since a handler of the receiver's library has then taken each of them. Before a
node first sends to a peer, it asks for the peer's session (`pairs`). A returned request, or a new session of the peer, ends
the present session: transfers in progress fail, and the next message begins a new one.
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
from protocols.mpi.am2.pairs import (
    MASK,
    Chunk,
    ControlRequest,
    Fragment,
    Head,
    IncomingMessage,
    Pair,
    SendQueues,
    Session,
)
from protocols.mpi.am2.staging_area import StagingRegion
from protocols.mpi.device import SendCompletion
from protocols.mpi.matching import CONTEXTS, Arrival, SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, Envelope, MPIError

_PACK: Final = tuple(struct.Struct(f"!{count}I").pack for count in range(10))
_MAX_REFUSALS: Final = 10_000
"""Maximum round trips in which a node answers that its endpoint does not exist yet. Our choice."""
_ABSENT_ENDPOINT: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
_OFFERED: Final = -1  # `Fragment.offset` of an offer
_REASONS: Final = {
    Status.UNREACHABLE: "has acknowledged nothing within the time limit, or has restarted",
    Status.BAD_ENDPOINT: "has no endpoint for MPI",
    Status.BAD_TAG: "has another endpoint in the place of MPI's",
}


class Am2Endpoint(SoftwareMatchingEndpoint):
    """Adapter of AM-II's host library to MPI. Implements `CrashAwareEndpoint`."""

    def __init__(self, host: ActiveMessages) -> None:
        """host: the node's library. Raises ValueError if it has endpoints already."""
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
            raise ValueError(
                "MPI's endpoint must be the first endpoint of a process, and this process has others already"
            )
        self._send_queues = SendQueues(host, endpoint)
        self._pairs: dict[int, Pair] = {}
        self._staging = StagingRegion()
        self._waiting: deque[tuple[Pair, int, IncomingMessage]] = deque()  # matched messages that wait for slots
        for handler, function in (
            (pairs.HELLO, self._on_hello), (pairs.SHORT, self._on_short), (pairs.EAGER, self._on_eager),
            (pairs.OFFER, self._on_offer), (pairs.GRANT, self._on_grant), (pairs.CHUNK, self._on_chunk),
            (pairs.CLEAR, self._on_clear), (pairs.TAKEN, self._on_taken), (pairs.PLACED, self._on_placed),
            (pairs.MEET, self._on_meet),
        ):  # fmt: skip
            endpoint.set_handler(handler, function)
        endpoint.error_handler = self._on_returned
        endpoint.tag = pairs.TAG
        if host.is_restarted:
            self._announce()
        drive(self._serve())

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
            return True
        pair = self._pairs.get(destination) or self._pair(destination)
        self._send_queues.put(pair, pair.next_message(context, tag, data, completion))
        return True

    async def _serve(self) -> None:
        """Handle incoming requests and replies, and continue the transfers that wait for them; never returns."""
        bundle, endpoint, host, advance = self._bundle, self._endpoint, self._host, self._send_queues.advance
        while True:
            change: Completion[None] = Completion("a message for MPI")
            bundle.change = change
            if host.handling_endpoint is None:
                if not endpoint.handle():
                    for pair in self._send_queues.restarted_peers():
                        self._end_session(pair, "has restarted", [number for number, _ in pair.released])
                advance()
            await change

    # Handlers of requests, each of which replies. a, b, c, d: the words of the head (`pairs.Head`).

    def _on_hello(self, token: Token, *words: int) -> None:
        a, b, c, d, returned_reply_count = words
        pair = self._pair(self._host.rank_of(token.source))
        self._on_session(pair, (a, b), returned_reply_count)
        token.reply(pairs.MEET, a, b, c, d, *pair.own_session, pair.returned_reply_count)

    def _on_short(
        self, token: Token, a: int, b: int, c: int, d: int, number: int, context_and_length: int, tag: int, *data: int
    ) -> None:
        pair = self._check_sender(token, (a, b, c, d), number)
        if pair is not None:
            length = context_and_length & 0xFFFF
            self._receive_fragment(
                pair, number, Fragment(context_and_length >> 16, tag, length, 0, _PACK[len(data)](*data)[:length])
            )

    def _on_eager(self, token: Token, data: memoryview, *words: int) -> None:
        a, b, c, d, number, context, tag, length, offset = words
        pair = self._check_sender(token, (a, b, c, d), number)
        if pair is not None:
            self._receive_fragment(pair, number, Fragment(context, tag, length, offset, data))

    def _on_offer(self, token: Token, *words: int) -> None:
        a, b, c, d, number, context, tag, length = words
        pair = self._check_sender(token, (a, b, c, d), number)
        if pair is not None:
            self._receive_fragment(pair, number, Fragment(context, tag, length, _OFFERED, b""))

    def _on_grant(self, token: Token, *words: int) -> None:
        """Handle a grant: a message that this node has offered has been matched."""
        a, b, c, d, number, granted, *slots = words
        pair = self._check_sender(token, (a, b, c, d))
        message = None if pair is None else pair.sending.get(number)
        if pair is None or message is None:
            return
        message.granted = granted
        for slot in slots:
            self._send_queues.put(pair, Chunk(message, slot))
        if not granted:
            del pair.sending[number]
            message.completion.complete(Envelope(pair.peer, message.tag, len(message.data)))

    def _on_chunk(self, token: Token, data: memoryview, *words: int) -> None:
        a, b, c, d, number, _, offset = words
        pair = self._check_sender(token, (a, b, c, d), number, silent=True)
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
                self._staging.free(incoming.slots)
                self._grant()
                self.matching.complete(incoming.arrival)

    def _on_clear(self, token: Token, *words: int) -> None:
        a, b, c, d = words
        pair = self._check_sender(token, (a, b, c, d))
        if pair is not None:
            self._staging.release(pair.peer)
            self._grant()

    # Handlers of replies, and of returned requests and replies.

    def _on_taken(self, token: Token, a: int, b: int, c: int, d: int) -> None:
        self._on_reply(self._pairs[self._host.rank_of(token.source)], (a, b, c, d))

    def _on_placed(self, token: Token, a: int, b: int, c: int, d: int, number: int, slot: int) -> None:
        pair, head = self._pairs[self._host.rank_of(token.source)], (a, b, c, d)
        message = pair.sending.get(number)
        if message is not None and head == pair.outgoing and message.sent < message.granted:
            pair.queue.append(Chunk(message, slot))
        self._on_reply(pair, head)

    def _on_meet(self, token: Token, *words: int) -> None:
        """Handle the peer's session, and the number of the message that it has rejected, if any."""
        a, b, c, d, incarnation, epoch, returned_reply_count, *rejected = words
        pair = self._pairs[self._host.rank_of(token.source)]
        if (a, b) == pair.own_session:  # before the reply is counted: it does not mean that the message has arrived
            self._on_session(pair, (incarnation, epoch), returned_reply_count, rejected)
        self._on_reply(pair, (a, b, c, d))

    def _on_returned(self, returned: Returned) -> None:
        pair, status = self._pair(self._host.rank_of(returned.destination)), returned.status
        a, b, c, d = returned.arguments[:4]
        if returned.is_reply:
            # Report the loss to the peer, which would wait for the reply forever.
            if status is Status.UNREACHABLE and pair.peer_session is not None and a == pair.peer_session[0]:
                pair.returned_reply_count += 1
                if pair.is_open and (a, b) == pair.peer_session:
                    self._end_session(pair, _REASONS[status], ())
                else:
                    self._send_notices(pair)
            return
        if (a, b, c, d) == pair.outgoing:
            if (
                returned.handler == pairs.HELLO
                and status in _ABSENT_ENDPOINT
                and pair.queue
                and pair.refusal_count < _MAX_REFUSALS
            ):
                pair.refusal_count += 1
                pair.is_announced = False
                self._send_queues.wake(pair)
            else:
                reason = _REASONS.get(status) or f"has sent a message back: {status.name.lower().replace('_', ' ')}"
                self._end_session(pair, reason, returned.arguments[4:5] if returned.handler in pairs.MESSAGES else ())
        self._on_reply(pair, (a, b, c, d))

    # Sessions.

    def _announce(self) -> None:
        """Announce this node's session to all peers: messages that they sent to the former process or NIC are lost, which
        they may not detect."""
        for peer in range(self.size):
            if peer != self.rank:
                pair = self._pair(peer)
                pair.notices_left = 1
                self._send_queues.wake(pair)

    def _pair(self, peer: int) -> Pair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = Pair(peer, self._host.incarnation, self._host.host_slot.turn)
        return pair

    def _check_sender(self, token: Token, head: Head, *number: int, silent: bool = False) -> Pair | None:
        """Return the sender of a request whose head names the current sessions. For another head, reply with this node's
        session and the number of the message, and return None. number: of the request's message, if it has one. silent: do
        not reply to a valid request."""
        peer = self._host.rank_of(token.source)
        pair = self._pairs.get(peer) or self._pair(peer)
        if head != pair.incoming and not (self._on_session(pair, head[:2]) and head == pair.incoming):
            token.reply(pairs.MEET, *head, *pair.own_session, pair.returned_reply_count, *number)
            return None
        if not silent:
            token.reply(pairs.TAKEN, *head)
        return pair

    def _on_session(
        self, pair: Pair, peer_session: Session, returned_reply_count: int = 0, rejected: Sequence[int] = ()
    ) -> bool:
        """Handle a session that a peer has announced. returned_reply_count: number of its replies that were returned to it.
        rejected: the number of a message that it has rejected, if any. Returns False if the session is older than the known
        one."""
        if peer_session != pair.peer_session:
            if not pair.is_newer(peer_session):
                return False
            if pair.is_of_other_process(peer_session):
                pair.reset_replies()
                self._staging.release(pair.peer)
            if pair.is_open:
                self._end_session(pair, "has restarted", rejected, renew=False)
        if returned_reply_count > pair.lost_reply_count:
            pair.on_lost_replies(returned_reply_count)
            self._send_queues.restore(pair)
        if not pair.is_open:
            pair.open(peer_session)
            if pair.queue:
                self._send_queues.wake(pair)
        self._send_notices(pair)
        return True

    def _end_session(self, pair: Pair, reason: str, doubtful: Sequence[int], renew: bool = True) -> None:
        """End a session: fail all transfers in progress. doubtful: numbers of messages that are known to have unanswered
        requests. renew: begin a new session of this node, and announce it to the peer."""
        if pair.released:
            doubtful = [*doubtful, *self._unanswered_messages(pair)]
        ended = pair.end(renew, doubtful)
        for incoming in ended.arriving:
            self._staging.hold_back(pair.peer, incoming.slots)
        for delivered in ended.delivered:
            delivered.deliver()
        self.matching.fail_transfers(
            pair.peer,
            MPIError(
                ERR_PROC_FAILED, f"node {pair.peer} {reason}: whether messages sent to it have arrived is not known"
            ),
            sends=[*ended.doubtful, *(message.completion for message in ended.sending)],
            arrivals=[incoming.arrival for incoming in ended.arriving],
        )
        if renew:
            self._send_queues.wake(pair)

    def report_crash(self, rank: int) -> None:
        pair = self._pairs.get(rank)
        if pair is None:
            return
        arriving = pair.reject_messages()
        for incoming in arriving:
            self._staging.hold_back(rank, incoming.slots)
        self.matching.fail_crashed(rank, [incoming.arrival for incoming in arriving])

    def _unanswered_messages(self, pair: Pair) -> list[int]:
        """Return the numbers of the session's messages with unanswered requests."""
        unanswered = self._endpoint.unanswered(pair.translation) if pair.translation >= 0 else []
        return [
            arguments[4]
            for handler, arguments in unanswered
            if handler in pairs.MESSAGES and arguments[:4] == pair.outgoing
        ]

    def _on_reply(self, pair: Pair, head: Head) -> None:
        pair.count_reply(head)
        self._send_queues.on_reply(pair)
        if pair.owes_clear:
            self._send_notices(pair)

    def _send_notices(self, pair: Pair) -> None:
        """Send the control requests that are due: HELLO, if the number of returned replies has changed, and CLEAR, if the
        peer waits for it and nothing of a former session is in flight any more."""
        if not pair.is_open:
            return
        if pair.returned_reply_count != pair.reported_reply_count:
            pair.reported_reply_count = pair.returned_reply_count
            self._send_queues.put(pair, ControlRequest(pairs.HELLO, (pair.returned_reply_count,)))
        if pair.owes_clear and not pair.former_unanswered_count:
            pair.owes_clear = False
            self._send_queues.put(pair, ControlRequest(pairs.CLEAR))

    # Incoming messages.

    def _receive_fragment(self, pair: Pair, number: int, fragment: Fragment) -> None:
        """Handle a fragment of a message, or keep it until the messages before have begun. number: of the message."""
        messages_before = pair.messages_before(number)
        if messages_before > 0:
            pair.early.setdefault(number, []).append(fragment._replace(data=bytes(fragment.data)))
            return
        if messages_before < 0:
            self._store_fragment(pair, number, fragment)
            return
        self._begin(pair, fragment)
        while pair.early and (fragments := pair.early.pop(number := pair.expected, None)) is not None:
            self._begin(pair, fragments[0])
            for later in fragments[1:]:
                self._store_fragment(pair, number, later)

    def _begin(self, pair: Pair, fragment: Fragment) -> None:
        """Begin to receive the next message, with its first fragment."""
        context, tag, length, offset, data = fragment
        number, pair.expected = pair.expected, pair.expected + 1 & MASK
        if offset == _OFFERED:
            incoming = pair.arriving[number] = IncomingMessage(length)
            on_match = partial(self._grant_offer, pair, number, incoming)
            incoming.arrival = self.matching.arrive(pair.peer, context, tag, length, on_match)
            return
        if len(data) == length:
            self.matching.arrive_complete(pair.peer, context, tag, data)
            return
        arrival = self.matching.arrive(pair.peer, context, tag, length)
        incoming = pair.arriving[number] = IncomingMessage(length)
        incoming.arrival = arrival
        self._store_fragment(pair, number, fragment)

    def _store_fragment(self, pair: Pair, number: int, fragment: Fragment) -> None:
        incoming, offset, data = pair.arriving[number], fragment.offset, fragment.data
        buffer = incoming.arrival.buffer[offset : offset + len(data)]
        buffer[:] = data[: len(buffer)]
        incoming.missing -= len(data)
        if not incoming.missing:
            del pair.arriving[number]
            self.matching.complete(incoming.arrival)

    def _grant_offer(self, pair: Pair, number: int, incoming: IncomingMessage, arrival: Arrival) -> None:
        """Grant an offered message that has been matched: at once if nothing of it is to be transferred, else when slots are
        free."""
        incoming.arrival = arrival
        incoming.missing = len(arrival.buffer)
        if incoming.missing:
            self._waiting.append((pair, number, incoming))
            self._grant()
            return
        del pair.arriving[number]
        self._send_queues.put(pair, ControlRequest(pairs.GRANT, (number, 0)))
        self.matching.complete(arrival)

    def _grant(self) -> None:
        """Grant slots to the messages that wait for them."""
        waiting = self._waiting
        while waiting:
            pair, number, incoming = waiting[0]
            if pair.arriving.get(number) is incoming:
                incoming.slots = self._staging.take(incoming.missing)
                if not incoming.slots:
                    return
                if self._endpoint.segment is None:
                    self._endpoint.segment = self._staging.memory
                self._send_queues.put(pair, ControlRequest(pairs.GRANT, (number, incoming.missing, *incoming.slots)))
            waiting.popleft()

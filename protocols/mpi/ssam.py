"""MPI on SSAM: messages as streams of one-cell requests, with matching by the library.

Requests between two nodes are handled in the order in which they were sent, so all traffic to a node is one stream of
items, each in consecutive cells: a message, an offer of a long message, a grant, or the granted bytes. A message of up to
MAX_EAGER bytes is sent at once. A longer one is offered (rendezvous), and sent when the receiver has matched and granted it.

A send completes when its last byte is in the window's buffers; its message has arrived when all of its requests have been
answered. When requests are returned, or the node begins a new session, all transfers in progress with it fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import Final

from protocols.core.outgoing_queue import OutgoingQueue
from protocols.mpi.device import Device, SendCompletion
from protocols.mpi.matching import CONTEXTS, Arrival, SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import ERR_OTHER, ERR_PROC_FAILED, Envelope, MPIError
from protocols.ssam.cells import DATA
from protocols.ssam.host import Library, Reply, Returned
from protocols.ssam.sba100 import TrapError

MAX_EAGER: Final = 4096
"""Maximum bytes of a message that is sent at once, in about a hundred cells. The receiver keeps an unexpected one in memory.
Our choice."""

MESSAGE, MORE, OFFER, GRANT, BYTES, HELLO = range(0x4D50_4900, 0x4D50_4906)
"""Addresses of the handlers; their upper bytes are the letters MPI in ASCII."""

_MESSAGE: Final = Struct("!HII")  # context, tag, length
_OFFER: Final = Struct("!IHII")  # number, context, tag, length
_GRANT: Final = Struct("!II")  # number, bytes granted

Cell = tuple[int, bytes]
"""Handler and data of a request."""


class IncomingMessage:
    """A message whose bytes are arriving. length: bytes that the sender sends. received: bytes that have arrived."""

    __slots__ = ("arrival", "length", "received")

    def __init__(self, arrival: Arrival, length: int) -> None:
        self.arrival: Final = arrival
        self.length: Final = length
        self.received = 0

    def store(self, data: bytes) -> bool:
        """Store the next bytes; return whether the message is complete. Bytes beyond the buffer are discarded."""
        buffer = self.arrival.buffer
        begin = self.received
        self.received += len(data)
        if begin < len(buffer):
            buffer[begin : begin + len(data)] = data[: len(buffer) - begin]
        return self.received >= self.length


class Item:
    """Cells to send to one node. completion: of the send whose last bytes these are; completes with `envelope` when the last
    cell is in the window's buffers. next_cell: None at the end."""

    __slots__ = ("cells", "completion", "envelope", "next_cell")

    def __init__(
        self, cells: Iterator[Cell], completion: SendCompletion | None = None, envelope: Envelope | None = None
    ) -> None:
        self.cells: Final = cells
        self.completion: Final = completion
        self.envelope: Final = envelope
        self.next_cell: Cell | None = next(cells)


class Pair:
    """State for one peer, in one session. outgoing: queue of items to it. next_offer: number of the next offer to it.
    offered: long messages to it, by number, until it grants them. sent: completed sends to it, each with the number of
    answered requests at which its message has arrived. incoming: a partly received message. offers: long messages from
    it, by number, until they are matched. granted: matched long messages from it, by number, until their bytes arrive.
    has_crashed: the peer's program has crashed, and messages that still arrive from it are discarded."""

    __slots__ = ("granted", "has_crashed", "incoming", "next_offer", "offered", "offers", "outgoing", "sent")

    def __init__(self, send: Callable[[Item], bool]) -> None:
        """send: see `OutgoingQueue`."""
        self.outgoing: OutgoingQueue[Item] = OutgoingQueue(send)
        self.next_offer = 0
        self.offered: dict[int, tuple[memoryview, SendCompletion, Envelope]] = {}
        self.sent: deque[tuple[int, SendCompletion]] = deque()
        self.incoming: IncomingMessage | None = None
        self.offers: dict[int, Arrival] = {}
        self.granted: dict[int, tuple[Arrival, int]] = {}
        self.has_crashed = False

    def take_arrivals(self) -> list[Arrival]:
        """Remove and return the incomplete messages from the peer."""
        arrivals = [*self.offers.values(), *(arrival for arrival, _ in self.granted.values())]
        if self.incoming is not None:
            arrivals.insert(0, self.incoming.arrival)
        self.incoming = None
        self.offers.clear()
        self.granted.clear()
        return arrivals


class SsamEndpoint(SoftwareMatchingEndpoint):
    """Adapter of SSAM's host library to MPI. Implements `CrashAwareEndpoint`."""

    def __init__(self, host: Library) -> None:
        super().__init__()
        self.rank = host.node
        self.size = host.size
        self.contexts = CONTEXTS
        self.max_tag = (1 << 31) - 1
        self.max_message_size = (1 << 32) - 1
        self._host = host
        self._pairs: dict[int, Pair] = {}
        for address, handler in (
            (MESSAGE, self._on_message), (MORE, self._on_more), (OFFER, self._on_offer), (GRANT, self._on_grant),
            (BYTES, self._on_bytes), (HELLO, self._on_hello),
        ):  # fmt: skip
            host.set_handler(address, handler)
        host.on_cells = host.on_space = self._send_all
        host.on_returned = self._on_returned
        host.on_renewed = partial(self._end_session, reason="has begun a new session")
        host.watch()
        # Messages to the NIC's former incarnation are lost, which their senders may not detect. So announce the session,
        # unless there are more peers than connections: then the connections are left to the program.
        if host.is_restarted and self.size - 1 <= host.settings.connections:
            for node in range(self.size):
                if node != self.rank:
                    self._queue_item(node, Item(iter([(HELLO, b"")])))

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
            return True
        envelope = Envelope(destination, tag, len(data))
        pair = self._pair(destination)
        if len(data) <= MAX_EAGER:
            header = _MESSAGE.pack(context, tag, len(data))
            self._queue_item(destination, Item(_cells(MESSAGE, header, data), completion, envelope))
        else:
            number, pair.next_offer = pair.next_offer, pair.next_offer + 1 & 0xFFFF_FFFF
            pair.offered[number] = data, completion, envelope
            self._queue_item(destination, Item(iter([(OFFER, _OFFER.pack(number, context, tag, len(data)))])))
        return True

    def _pair(self, node: int) -> Pair:
        pair = self._pairs.get(node)
        if pair is None:
            pair = self._pairs[node] = Pair(partial(self._send_item, node))
        return pair

    # Outgoing requests.

    def _queue_item(self, node: int, item: Item) -> None:
        self._pair(node).outgoing.items.append(item)
        if not self._host.is_handling:
            self._send_to(node)

    def _send_all(self) -> None:
        """Send queued items to all nodes, as far as the windows permit, and record delivered messages."""
        for node in list(self._pairs):
            self._send_to(node)

    def _send_to(self, node: int) -> None:
        pair, host = self._pairs[node], self._host
        try:
            pair.outgoing.advance()
        except TrapError as error:  # too many connections
            self._fail_transfers(node, MPIError(ERR_OTHER, str(error)))
            return
        while pair.sent and pair.sent[0][0] <= host.answered_count(node):
            pair.sent.popleft()[1].deliver()

    def _send_item(self, node: int, item: Item) -> bool:
        """Send an item's cells as far as the window permits; return whether all are sent."""
        host = self._host
        while item.next_cell is not None:
            if not host.try_request(node, *item.next_cell):
                return False
            item.next_cell = next(item.cells, None)
        if item.completion is not None:
            assert item.envelope is not None
            self._pairs[node].sent.append((host.sent_count(node), item.completion))
            item.completion.release(item.envelope)
        return True

    # Handlers of incoming requests, none of which replies.

    def _on_hello(self, source: int, data: bytes) -> Reply | None:
        """Do nothing: the request only announces its sender's session."""
        del source, data
        return None

    def _on_message(self, source: int, data: bytes) -> Reply | None:
        context, tag, length = _MESSAGE.unpack_from(data)
        if self._pair(source).has_crashed:
            return None
        arrival = self.matching.arrive(source, context, tag, length)
        self._begin(source, IncomingMessage(arrival, length), data[_MESSAGE.size :])
        return None

    def _on_more(self, source: int, data: bytes) -> Reply | None:
        pair = self._pair(source)
        incoming = pair.incoming
        if incoming is not None and incoming.store(data):
            pair.incoming = None
            self.matching.complete(incoming.arrival)
        return None

    def _on_offer(self, source: int, data: bytes) -> Reply | None:
        number, context, tag, length = _OFFER.unpack(data)
        if self._pair(source).has_crashed:
            return None
        arrival = self.matching.arrive(source, context, tag, length, partial(self._grant_offer, source, number))
        if arrival.receive is None:
            self._pair(source).offers[number] = arrival
        return None

    def _grant_offer(self, source: int, number: int, arrival: Arrival) -> None:
        """Grant an offered message that has been matched."""
        granted_size = len(arrival.buffer)
        self._pair(source).offers.pop(number, None)
        self._queue_item(source, Item(iter([(GRANT, _GRANT.pack(number, granted_size))])))
        if granted_size:
            self._pair(source).granted[number] = arrival, granted_size
        else:
            self.matching.complete(arrival)

    def _on_grant(self, source: int, data: bytes) -> Reply | None:
        number, granted_size = _GRANT.unpack(data)
        offered = self._pair(source).offered.pop(number, None)
        if offered is not None:
            message, completion, envelope = offered
            cells = _cells(BYTES, _GRANT.pack(number, granted_size), message[:granted_size])
            self._queue_item(source, Item(cells, completion, envelope))
        return None

    def _on_bytes(self, source: int, data: bytes) -> Reply | None:
        number, granted_size = _GRANT.unpack_from(data)
        granted = self._pair(source).granted.pop(number, None)
        if granted is not None:
            self._begin(source, IncomingMessage(granted[0], granted_size), data[_GRANT.size :])
        return None

    def _begin(self, source: int, incoming: IncomingMessage, data: bytes) -> None:
        """Begin to receive a message. data: the bytes of its first cell."""
        if incoming.store(data):
            self.matching.complete(incoming.arrival)
        else:
            self._pair(source).incoming = incoming

    # Failures.

    def report_crash(self, rank: int) -> None:
        pair = self._pair(rank)
        pair.has_crashed = True
        self.matching.fail_crashed(rank, pair.take_arrivals())

    def _on_returned(self, returned: Returned) -> None:
        self._end_session(returned.node, returned.reason)

    def _end_session(self, node: int, reason: str) -> None:
        """Fail all transfers in progress with a node, since its session has ended. It is not known which requests it has
        handled, and a long message may be in progress without a request that could be returned."""
        self._fail_transfers(
            node,
            MPIError(ERR_PROC_FAILED, f"node {node} {reason}: whether messages sent to it have arrived is not known"),
        )

    def _fail_transfers(self, node: int, error: MPIError) -> None:
        """Fail all transfers in progress with a node."""
        pair = self._pairs.pop(node, None)
        if pair is None:
            return
        sends = [completion for _, completion in pair.sent]
        sends += [item.completion for item in pair.outgoing.items if item.completion is not None]
        sends += [completion for _, completion, _ in pair.offered.values()]
        self.matching.fail_transfers(node, error, sends, pair.take_arrivals())


def _cells(handler: int, header: bytes, data: memoryview) -> Iterator[Cell]:
    """Split an item into requests. The first one carries the header."""
    payload_size = DATA - len(header)
    yield handler, header + bytes(data[:payload_size])
    for begin in range(payload_size, len(data), DATA):
        yield MORE, bytes(data[begin : begin + DATA])


def device(host: Library) -> Device:
    """Make the device for a node's communicators; one for each host library."""
    return Device(SsamEndpoint(host))

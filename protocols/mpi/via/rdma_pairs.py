"""The connection of two ranks: RDMA areas, and the flow control of the sender.

The paper's protocol (section 4.1): memory is registered once; receive descriptors are posted before connecting; then each
side sends the address of its RDMA area. A message is copied to registered memory and RDMA-written to the peer's area at
WritePointer, with its length as immediate data, negated if the write has wrapped around to the area's beginning. The
immediate data consumes a receive descriptor, whose completion notifies the receiver of the message at its ReadPointer.

The sender has two limits (section 4.2). The first is the space in the receiver's area. RDMAmaxread counts the bytes that the
receiver has freed, RDMAmaxwrite those that the sender has used. The receiver RDMA-writes RDMAmaxread to the sender's memory
each time half of the area is free again. The second limit is descLeft, the number of the receiver's descriptors that
messages may still use. When it falls to a threshold, the sender asks for the receiver's count of descriptors posted
again by an RDMA write, and the receiver answers.

Unlike in the paper, these writes have immediate data, so that a waiting rank is notified of them: 0 with a credit, ASK with
a question. Each takes one of the descriptors that messages may not use. A peer that has processed none of them has received
at most four: one question, the answer to its own question, and two credits, each for half of the area. So ranks out of
credit in both directions do not deadlock.

A message longer than a send buffer is sent in parts, which are adjacent in the area. A setting avoids the cost of copying
large messages, as the paper proposes (section 5): their memory is registered on the fly, and the NIC reads it; a send buffer
then has only the part's header.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from protocols.core.completion import Completion
from protocols.core.host_work import COPY, HostWork
from protocols.core.outgoing_queue import OutgoingQueue
from protocols.mpi.device import SendCompletion
from protocols.mpi.matching import Arrival
from protocols.mpi.mpi_errors import Envelope
from protocols.via.vip_descriptors import Memory, Segment
from protocols.via.vipl_names import IMMEDIATE, OP_RDMAWRITE, OP_SENDRECV, Done
from protocols.via.virtual_interface import Descriptor, Vi

_BUFFERS: Final = 4
"""Number of send buffers. A buffer is at most a quarter of an area, so half an area has room for it, wherever WritePointer
is."""
RESERVE: Final = 5
"""Receive descriptors that are reserved for credits and questions."""
ASK: Final = 1 << 31
"""Immediate data of a question; lengths are smaller, and negated lengths greater."""
_GREETING: Final = Struct("!QQII")  # addresses of the area and the credit cell, and their handles
_CREDIT: Final = Struct("!QQQ")  # totals: bytes freed, descriptors posted again, questions answered
_HEAD: Final = Struct("!HHIII")
"""Context, number of the part, tag, bytes of the message, offset of the part. Numbers begin with 1, since memory without a
part has 0."""
_HEAD_SIZE: Final = _HEAD.size
_ALIGNMENT: Final = 8
_CELL_SIZE: Final = 64
"""Bytes of memory for a credit or a greeting."""
MIN_TRANSFER: Final = _CELL_SIZE
"""Minimum size in bytes that the NIC must allow for a transfer: a greeting, or a part of a message."""
_CELLS: Final = 8
"""Number of cells from which credits are sent in turn: more than can be in flight (see RESERVE)."""
_MASK: Final = 0xFFFF_FFFF
_NUMBER_MASK: Final = 0xFFFF


OnPart = Callable[["Pair", int, int, int, int, memoryview], object]
"""Handler of a received part of a message: connection, context, tag, bytes of the message, offset of the part, its bytes."""


class OutgoingMessage:
    """A message that is being sent. posted: bytes in the parts posted so far. memory: the message's registered memory; None:
    it is not registered on the fly. is_registering: the message waits for its registration."""

    __slots__ = ("completion", "context", "data", "is_registering", "memory", "posted", "tag")

    def __init__(self, context: int, tag: int, data: memoryview, completion: SendCompletion) -> None:
        self.context = context
        self.tag = tag
        self.data = data
        self.completion = completion
        self.posted = 0
        self.memory: Memory | None = None
        self.is_registering = False


class LostPartError(Exception):
    """A part of a message, or a greeting, is missing."""


class Pair:
    """The connection with one rank. vi: None until it is created. writable, readable: registered memory that the peer
    writes, and from which this rank sends. regions: both, as far as they are registered. is_connected: the VI is
    connected. is_open: the peer has sent the address of its area. is_lost: the connection has ended. has_crashed: the
    peer's program has crashed, and parts of messages that still arrive are discarded. arrival: the message that is being
    received. opened: completes when the connection is open. registered: memory of messages, to deregister when a lost
    connection is closed. is_starved: the queue waits for a descriptor of the NIC.

    The paper's names: `written` is RDMAmaxwrite, `freed` RDMAmaxread, `desc_left` descLeft. The peer's
    `received_part_count` and `consumed` follow `sent_part_count` and `written`.
    """

    def __init__(
        self, peer: int, depth: int, area: int, buffer: int, work: HostWork, has_room: Callable[[], bool]
    ) -> None:
        """depth: number of receive descriptors. area, buffer: bytes of the RDMA area and of a send buffer. work: is charged
        for copies. has_room: returns whether the NIC has a descriptor for a send."""
        self.peer: Final = peer
        self.depth: Final = depth
        self.writable_size: Final = area + _CELL_SIZE
        """Bytes of memory that the peer writes: RDMA area, and credit cell."""
        self.readable_size: Final = _BUFFERS * buffer + (_CELLS + 1) * _CELL_SIZE
        """Bytes of memory from which this rank sends: buffers, credits, and greeting."""
        self._work = work
        self._area_size = area
        self._buffer_size = buffer
        self._threshold = (depth - RESERVE) // 4
        self._question_count = 0  # number of questions sent
        self._part_count_at_question = 0  # number of parts sent before the last question
        self._answered_count = 0  # number of questions that the peer has answered
        self._answer_count = 0  # number of the peer's questions that have been answered
        self._is_pumping = False
        self._has_room = has_room
        self._owes_credit = False
        self.is_starved = False
        self._outgoing: OutgoingQueue[OutgoingMessage] = OutgoingQueue(self._send_parts)
        self.queue: Final = self._outgoing.items  # messages with unsent parts
        # For each posted send: the message whose last part it is; None for another send.
        self.released: deque[OutgoingMessage | None] = deque()
        self.vi: Vi | None = None
        self.is_connected = False
        self.is_open = False
        self.is_lost = False
        self.has_crashed = False
        self.arrival: Arrival | None = None
        self.opened: Completion[None] = Completion("a connection to rank %s", peer)
        self.registered: list[Memory] = []
        self.regions: list[tuple[memoryview, Memory]] = []
        self.writable: tuple[memoryview, Memory]
        self.readable: tuple[memoryview, Memory]
        self._area: Segment
        self._cell: Segment
        self._buffers: deque[int] = deque(range(_BUFFERS))
        self._next_cell = 0
        self.sent_part_count = 0
        self._write_pointer = 0
        self.written = 0  # total bytes used of the peer's area
        self.freed = 0
        self._reposted_count = 0  # number of descriptors that the peer has posted again
        self.received_part_count = 0
        self._read_pointer = 0
        self.consumed = 0  # total bytes of this rank's area that have been read
        self._credited = 0  # value of `consumed` in the last credit

    @property
    def desc_left(self) -> int:
        """Number of the peer's receive descriptors that messages may still use."""
        return self.depth - RESERVE - (self.sent_part_count - self._reposted_count)

    @property
    def space_left(self) -> int:
        """Free bytes of the peer's area."""
        return self._area_size - (self.written - self.freed)

    # Connecting.

    def make_receives(self) -> list[Descriptor]:
        """Make the receive descriptors to post before connecting. Only the greeting, which comes first, has data. It is
        received in the credit cell, to which no credit is written before the greeting has been read."""
        greeting = Descriptor(data=(self.writable[1].segment(self._area_size, _CELL_SIZE),))
        return [greeting, *[Descriptor() for _ in range(self.depth - 1)]]

    def greet(self) -> None:
        """Send the addresses of the RDMA area and the credit cell to the peer."""
        view, memory = self.readable
        own = self.writable[1]
        at = self.readable_size - _CELL_SIZE
        _GREETING.pack_into(view, at, own.address, own.address + self._area_size, own.handle, own.handle)
        assert self.vi is not None
        self.released.append(None)
        self.vi.post_send(Descriptor(OP_SENDRECV, (memory.segment(at, _GREETING.size),)))

    def on_greeting(self) -> None:
        """Handle the peer's greeting."""
        area, cell, area_handle, cell_handle = _GREETING.unpack_from(self.writable[0], self._area_size)
        _CREDIT.pack_into(self.writable[0], self._area_size, 0, 0, 0)
        self._area, self._cell = Segment(area, area_handle), Segment(cell, cell_handle)
        self.is_open = True

    # Sending.

    def pump(self) -> None:
        """Send credits and parts of messages, as far as buffers, area and descriptors permit. A send that completes at once
        calls this method again, which returns: the running loop continues."""
        if self._is_pumping or not (self.queue or self._owes_credit):
            return
        self._is_pumping = True
        self.is_starved = False
        try:
            self._send_credit()
            if self.queue:
                self._outgoing.advance()
                self._send_question()
                self._send_credit()
        finally:
            self._is_pumping = False

    def _may_post(self) -> bool:
        self.is_starved = not self._has_room()
        return not self.is_starved

    def _send_credit(self) -> None:
        if self._owes_credit and self._may_post():
            self._owes_credit = False
            self._post_credit()

    def _send_parts(self, outgoing: OutgoingMessage) -> bool:
        """Send parts of a message; return whether all are sent."""
        while self.is_open and self._buffers and self.desc_left > 0 and self._may_post():
            if outgoing.is_registering or not self._write_part(outgoing):
                return False
            if outgoing.posted == len(outgoing.data):
                if outgoing.memory is None:
                    self._release(outgoing)
                return True
        return False

    def _send_question(self) -> None:
        """Ask for the peer's count of descriptors posted again, if few are left."""
        is_asking = self._question_count != self._answered_count
        if self.queue and self.is_open and self.desc_left <= self._threshold and not is_asking and self._may_post():
            self._question_count += 1
            self._part_count_at_question = self.sent_part_count
            self.released.append(None)
            self._post((), self._cell, ASK, None)

    def sent(self, descriptor: Descriptor) -> Memory | None:
        """Handle a completed send descriptor. Returns the memory of a message that was registered on the fly, if this
        was its last part."""
        message = self.released.popleft()
        if isinstance(descriptor.context, int):
            self._buffers.append(descriptor.context)
        if message is None:
            return None
        self._release(message)  # at the unreliable level a send completes while it is posted
        if message.completion.is_unconfirmed:
            message.completion.deliver()
        return message.memory

    def _release(self, outgoing: OutgoingMessage) -> None:
        """Complete the send of a message, unless it is complete: the program may reuse the memory."""
        if not outgoing.completion.done:
            outgoing.completion.release(Envelope(self.peer, outgoing.tag, len(outgoing.data)))

    def _write_part(self, outgoing: OutgoingMessage) -> bool:
        """Write the next part to the peer's area, from a send buffer or from registered memory; return False if the area has
        no space."""
        begin = outgoing.posted
        data = outgoing.data[begin : begin + self._buffer_size - _HEAD_SIZE]
        length = _HEAD_SIZE + len(data)
        need = _align(length)
        wraps = self._write_pointer + need > self._area_size
        skipped = self._area_size - self._write_pointer if wraps else 0
        if self.space_left < skipped + need:
            return False
        if wraps:
            self._write_pointer = 0
        buffer = self._buffers.popleft()
        view, memory = self.readable
        at = buffer * self._buffer_size
        total = len(outgoing.data)
        _HEAD.pack_into(view, at, outgoing.context, self.sent_part_count + 1 & _NUMBER_MASK, outgoing.tag, total, begin)
        if outgoing.memory is None:
            view[at + _HEAD_SIZE : at + length] = data
            self._work.spend(COPY, length, self._work.core)
            segments: tuple[Segment, ...] = (memory.segment(at, length),)
        else:
            segments = (memory.segment(at, _HEAD_SIZE), outgoing.memory.segment(begin, len(data)))
        outgoing.posted = begin + len(data)
        remote = Segment(self._area.address + self._write_pointer, self._area.handle)
        self._write_pointer += need
        self.written += skipped + need
        self.sent_part_count += 1
        self.released.append(outgoing if outgoing.posted == total else None)
        immediate = (-length if wraps else length) & _MASK
        self._post(segments, remote, immediate, buffer)
        return True

    def _post(self, segments: Sequence[Segment], remote: Segment, immediate: int, context: int | None) -> None:
        assert self.vi is not None
        self.vi.post_send(Descriptor(OP_RDMAWRITE | IMMEDIATE, segments, remote, immediate, context))

    # Receiving.

    def received(self, descriptor: Descriptor, on_part: OnPart) -> None:
        """Handle a completed receive descriptor, and post it again. on_part: called with a part of a message. Raises
        LostPartError."""
        immediate = descriptor.immediate
        if not self.is_open:
            if descriptor.status & Done.IMMEDIATE:  # the greeting, which comes first, was lost
                raise LostPartError
            self.on_greeting()
            descriptor.data = ()
        elif not immediate:
            self._on_credit()
        elif immediate != ASK:
            self._read_part(immediate, on_part)
        assert self.vi is not None
        self.vi.post_receive(descriptor)
        if immediate == ASK:
            self._answer_count += 1
            self._owes_credit = True
        if self.consumed - self._credited >= self._area_size // 2:
            self._owes_credit = True

    def _on_credit(self) -> None:
        """Handle the peer's counts. Raises LostPartError if the answer to a question does not count all parts that were sent
        before the question: at the unreliable level, the missing ones are lost."""
        credit: tuple[int, int, int] = _CREDIT.unpack_from(self.writable[0], self._area_size)
        self.freed, self._reposted_count, answered = credit
        is_answer = answered != self._answered_count
        self._answered_count = answered
        if is_answer and answered == self._question_count and self._reposted_count < self._part_count_at_question:
            raise LostPartError

    def _post_credit(self) -> None:
        """Send the counts of freed bytes of the area, and of descriptors posted again, to the peer."""
        self._credited = self.consumed
        view, memory = self.readable
        at = _BUFFERS * self._buffer_size + self._next_cell * _CELL_SIZE
        self._next_cell = (self._next_cell + 1) % _CELLS
        _CREDIT.pack_into(view, at, self.consumed, self.received_part_count, self._answer_count)
        self.released.append(None)
        self._post((memory.segment(at, _CREDIT.size),), self._cell, 0, None)

    def _read_part(self, immediate: int, on_part: OnPart) -> None:
        """Read the part at ReadPointer. immediate: its length, negated if the sender has wrapped around to the area's
        beginning. Raises LostPartError for a part out of sequence."""
        length = immediate
        if immediate & 1 << 31:
            length = (1 << 32) - immediate
            self.consumed += self._area_size - self._read_pointer
            self._read_pointer = 0
        begin = self._read_pointer
        if not _HEAD_SIZE <= length <= self._area_size - begin:
            raise LostPartError
        area = self.writable[0]
        head: tuple[int, int, int, int, int] = _HEAD.unpack_from(area, begin)
        context, number, tag, total, offset = head
        if number != self.received_part_count + 1 & _NUMBER_MASK:
            raise LostPartError
        self.received_part_count += 1
        on_part(self, context, tag, total, offset, area[begin + _HEAD_SIZE : begin + length])
        used = _align(length)
        self._read_pointer += used
        self.consumed += used


def _align(length: int) -> int:
    return (length + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT

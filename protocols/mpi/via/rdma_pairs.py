"""The connection of two ranks: RDMA areas, and the sender's account of what the receiver can still take.

The paper's protocol: memory is registered once; receive descriptors are posted before connecting; then each side tells
where its RDMA area is. A message is copied into registered memory and RDMA-written to the peer's area at WritePointer,
with its length as immediate data, negative if the write has gone back to the area's beginning. The immediate data
consumes a receive descriptor, which tells the receiver of the message at its ReadPointer.

The sender has two limits. RDMAmaxread is what the receiver has freed of its area; descLeft is what it has posted again
of its descriptors. The receiver writes both into the sender's memory by RDMA; it does so unasked, each time half of the
area or of the descriptors is free again, so a sender need not ask. That write has immediate data 0, so that a waiting
sender is told. It takes one of the descriptors that messages may not use: a peer that has processed none of these
writes has received at most four, since all its credit is two halves of each kind. So ranks out of credit in both
directions do not deadlock.

A message longer than a send buffer is cut. Its parts follow each other in the area.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from protocols.core.host_work import COPY, HostWork
from protocols.mpi.device import Dispatch
from protocols.mpi.matching import Arrival
from protocols.mpi.mpi_errors import Envelope
from protocols.via.host import Memory, Vi
from protocols.via.vip_descriptors import Segment
from protocols.via.vipl_names import IMMEDIATE, OP_RDMAWRITE, OP_SENDRECV
from protocols.via.work_queues import Descriptor

_BUFFERS: Final = 4
_RESERVE: Final = 5
"""Receive descriptors that messages may not use."""
_GREETING: Final = Struct("!QQII")  # addresses of area and credit cell, their handles
_CREDIT: Final = Struct("!QQ")  # bytes freed, descriptors posted again, since the beginning
_HEAD: Final = Struct("!HHIII")  # context, number of the part, tag, bytes of the message, offset of the part
_ALIGNED: Final = 8
_CELL: Final = 64
_CELLS: Final = 8
"""Copies of credit that are being sent."""
_MASK: Final = 0xFFFF_FFFF
_NUMBERS: Final = 0xFFFF


class Part(NamedTuple):
    """A received part of a message."""

    context: int
    tag: int
    total: int
    offset: int
    data: memoryview


class Outgoing:
    """A message that is being sent. taken: bytes of it in send buffers so far."""

    __slots__ = ("context", "data", "over", "tag", "taken")

    def __init__(self, context: int, tag: int, data: memoryview, over: Dispatch) -> None:
        self.context = context
        self.tag = tag
        self.data = data
        self.over = over
        self.taken = 0


class LostPartError(Exception):
    """A part of a message is missing."""


class Pair:
    """The connection with one rank. vi, writable, readable: None until they are created. is_open: the peer has told where
    its area is. is_lost: the connection has ended. arrival: the message that is being received.

    The paper's names: `written` is RDMAmaxwrite, `freed` RDMAmaxread, `desc_left` descLeft.
    """

    def __init__(self, peer: int, depth: int, area: int, buffer: int, work: HostWork) -> None:
        """depth: receive descriptors. area: bytes of an RDMA area. buffer: bytes of a send buffer, less than half an area,
        so that an empty area has room for one, wherever WritePointer is. work: the host's cores."""
        self.peer: Final = peer
        self.depth: Final = depth
        self.writable_size: Final = area + _CELL
        """Bytes of the memory that the peer writes: RDMA area, and credit cell."""
        self.readable_size: Final = _BUFFERS * buffer + (_CELLS + 1) * _CELL
        """Bytes of the memory that it sends from: buffers, credits, and greeting."""
        self._area_size: Final = area
        self._buffer: Final = buffer
        self._work: Final = work
        self.queue: deque[Outgoing] = deque()  # messages with parts still to send
        self.released: deque[Outgoing | None] = deque()  # per part under way: the message of which it is the last
        self.vi: Vi | None = None
        self.is_connected = False
        self.is_open = False
        self.is_lost = False
        self.arrival: Arrival | None = None
        self.writable: tuple[memoryview, Memory]
        self.readable: tuple[memoryview, Memory]
        self._area: Segment
        self._cell: Segment
        self._buffers: deque[int] = deque(range(_BUFFERS))
        self._next_cell = 0
        self._sent = 0  # parts
        self._write_pointer = 0
        self._written = 0  # bytes of the peer's area used since the beginning
        self._freed = 0
        self._posted_again = 0  # by the peer
        self._received = 0  # parts
        self._read_pointer = 0
        self._consumed = 0  # bytes of the own area
        self._told = (0, 0)  # bytes and parts in the last credit

    @property
    def desc_left(self) -> int:
        """Receive descriptors of the peer that messages may still use."""
        return self.depth - _RESERVE - (self._sent - self._posted_again)

    @property
    def space_left(self) -> int:
        """Free bytes of the peer's area."""
        return self._area_size - (self._written - self._freed)

    # Begin.

    def receives(self) -> list[Descriptor]:
        """Return the receive descriptors to post before connecting. Only the greeting has data, and comes first; it lands
        in the credit cell, which no credit needs before."""
        memory = self.writable[1]
        return [Descriptor(data=(memory.segment(self._area_size, _CELL),)) for _ in range(self.depth)]

    def greet(self) -> None:
        """Tell the peer where the RDMA area and the credit cell are."""
        view, memory = self.readable
        own = self.writable[1]
        cell = own.address + self._area_size
        _GREETING.pack_into(view, self.readable_size - _CELL, own.address, cell, own.handle, own.handle)
        assert self.vi is not None
        self.released.append(None)
        data = (memory.segment(self.readable_size - _CELL, _GREETING.size),)
        self.vi.post_send(Descriptor(OP_SENDRECV, data, context=None))

    def greeted(self) -> None:
        """Take the peer's greeting."""
        area, cell, area_handle, cell_handle = _GREETING.unpack_from(self.writable[0], self._area_size)
        _CREDIT.pack_into(self.writable[0], self._area_size, 0, 0)
        self._area, self._cell = Segment(area, area_handle), Segment(cell, cell_handle)
        self.is_open = True

    # Send.

    def pump(self) -> None:
        """Send parts of messages, as far as buffers, area and descriptors permit."""
        queue = self.queue
        while queue and self.is_open and self._buffers and self.desc_left > 0:
            outgoing = queue[0]
            if not self._write(outgoing):
                return
            if outgoing.taken == len(outgoing.data):
                queue.popleft()
                over = outgoing.over
                if not over.done:
                    over.release(Envelope(self.peer, outgoing.tag, len(outgoing.data)))

    def sent(self, descriptor: Descriptor) -> None:
        """Handle a send descriptor that is done."""
        message = self.released.popleft()
        if isinstance(descriptor.context, int):
            self._buffers.append(descriptor.context)
        if message is not None and message.over.is_open:
            message.over.deliver()

    def _write(self, outgoing: Outgoing) -> bool:
        """Copy a part into a send buffer, and write it to the peer's area; False: there is no space."""
        begin = outgoing.taken
        data = outgoing.data[begin : begin + self._buffer - _HEAD.size]
        length = _HEAD.size + len(data)
        need = _aligned(length)
        wraps = self._write_pointer + need > self._area_size
        skipped = self._area_size - self._write_pointer if wraps else 0
        if self.space_left < skipped + need:
            return False
        if wraps:
            self._write_pointer = 0
        buffer = self._buffers.popleft()
        view, memory = self.readable
        at = buffer * self._buffer
        total = len(outgoing.data)
        _HEAD.pack_into(view, at, outgoing.context, self._sent & _NUMBERS, outgoing.tag, total, begin)
        view[at + _HEAD.size : at + length] = data
        self._work.spend(COPY, length, self._work.core)
        outgoing.taken = begin + len(data)
        remote = Segment(self._area.address + self._write_pointer, self._area.handle)
        self._write_pointer += need
        self._written += skipped + need
        self._sent += 1
        self.released.append(outgoing if outgoing.taken == total else None)
        immediate = (-length if wraps else length) & _MASK
        self._post(memory.segment(at, length), remote, immediate, buffer)
        return True

    def _post(self, segment: Segment, remote: Segment, immediate: int, context: int | None) -> None:
        assert self.vi is not None
        self.vi.post_send(Descriptor(OP_RDMAWRITE | IMMEDIATE, (segment,), remote, immediate, context))

    # Receive.

    def received(self, descriptor: Descriptor, take: Callable[[Pair, Part], object]) -> None:
        """Handle a receive descriptor that is done. take: is given a part of a message. Raises LostPartError."""
        immediate = descriptor.immediate
        if not self.is_open:
            self.greeted()
        elif not immediate:
            self._freed, self._posted_again = _CREDIT.unpack_from(self.writable[0], self._area_size)
        else:
            self._read(immediate, take)
        assert self.vi is not None
        self.vi.post_receive(descriptor)

    def settle(self) -> None:
        """Tell the peer what is free again, if it is half of the area or of the descriptors."""
        bytes_told, parts_told = self._told
        due_bytes, due_parts = self._consumed - bytes_told, self._received - parts_told
        if due_bytes < self._area_size // 2 and due_parts < (self.depth - _RESERVE + 1) // 2:
            return
        self._told = (self._consumed, self._received)
        view, memory = self.readable
        at = _BUFFERS * self._buffer + self._next_cell * _CELL
        self._next_cell = (self._next_cell + 1) % _CELLS
        _CREDIT.pack_into(view, at, *self._told)
        self.released.append(None)
        self._post(memory.segment(at, _CREDIT.size), self._cell, 0, None)

    def _read(self, immediate: int, take: Callable[[Pair, Part], object]) -> None:
        length = immediate
        if immediate & 1 << 31:
            length = (1 << 32) - immediate
            self._consumed += self._area_size - self._read_pointer
            self._read_pointer = 0
        begin = self._read_pointer
        if not _HEAD.size <= length <= self._area_size - begin:
            raise LostPartError
        area = self.writable[0]
        context, number, tag, total, offset = _HEAD.unpack_from(area, begin)
        if number != self._received & _NUMBERS:
            raise LostPartError
        self._received += 1
        take(self, Part(context, tag, total, offset, area[begin + _HEAD.size : begin + length]))
        self._read_pointer += _aligned(length)
        self._consumed += _aligned(length)


def _aligned(length: int) -> int:
    return (length + _ALIGNED - 1) // _ALIGNED * _ALIGNED

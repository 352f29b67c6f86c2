"""Descriptors and commands: 128 bytes each in memory that host and NIC share.

A descriptor has the specification's layout (section 6): 64-byte aligned, a control segment of 32 bytes, for RDMA an
address segment of 16 bytes, and data segments of 16 bytes each, in the byte order of the paper's hosts (little-endian).
A descriptor has at most MAX_SEGMENTS segments. Descriptors are in the NIC's memory instead of registered memory, and a
doorbell contains queue and descriptor, so the Next fields are unused.

A command passes a call of the VI Provider Library to the kernel agent, which returns the result in the same slot. The
layout is ours: the specification leaves it to the provider.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from protocols.via.vipl_names import OP_MASK, OP_RDMAREAD, OP_RDMAWRITE

SIZE: Final = 128
"""Bytes of a descriptor or command."""
MAX_SEGMENTS: Final = 6
"""Maximum number of segments of a descriptor, an address segment included."""
MAX_VIS: Final = 65_536
MAX_DISCRIMINATOR: Final = 40
"""Maximum bytes of a discriminator."""

_CONTROL: Final = struct.Struct(
    "<QIHHIIII"
)  # next, handle of next, segments, control, reserved, immediate, length, status
_REQUEST: Final = struct.Struct(
    "<12xHHxxxxII"
)  # the fields of _CONTROL that the NIC reads: segments, control, immediate, length
_SEGMENT: Final = struct.Struct("<QII")  # address, handle, length (of an address segment: reserved)
_CONTROL_SIZE: Final = _CONTROL.size
_SEGMENT_SIZE: Final = _SEGMENT.size
_STATUS: Final = struct.Struct("<III")  # immediate, length, status
_STATUS_OFFSET: Final = 20
_COMMAND: Final = struct.Struct("<HHIIIQIIB40s")


class Queue:
    """Codes of the queues in a doorbell."""

    SEND: Final = 0
    RECEIVE: Final = 1
    COMMAND: Final = 2


class Segment:
    """A segment of a descriptor: an address in registered memory. length: bytes; 0 in an address segment."""

    __slots__ = ("address", "handle", "length")

    def __init__(self, address: int, handle: int, length: int = 0) -> None:
        self.address = address
        self.handle = handle
        self.length = length


class Memory:
    """Registered memory (VIP_MEM_HANDLE). address: address of its first byte, as used in descriptors. size: bytes."""

    __slots__ = ("address", "handle", "ptag", "size")

    def __init__(self, handle: int, address: int, size: int, ptag: int) -> None:
        self.handle = handle
        self.address = address
        self.size = size
        self.ptag = ptag

    def segment(self, offset: int = 0, length: int | None = None) -> Segment:
        """Return a data segment of this memory. length: None for all bytes from `offset` on. Raises ValueError for a
        segment outside of the memory."""
        size = self.size - offset if length is None else length
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"a segment must lie in the {self.size} bytes of its memory, got {size} at {offset}")
        return Segment(self.address + offset, self.handle, size)


class PostedDescriptor:
    """A descriptor as the NIC reads it. remote: address segment of RDMA."""

    __slots__ = ("control", "data", "immediate", "length", "remote")

    def __init__(
        self, control: int, immediate: int, length: int, remote: Segment | None, data: Sequence[Segment]
    ) -> None:
        self.control = control
        self.immediate = immediate
        self.length = length
        self.remote = remote
        self.data = data


class Op(IntEnum):
    """Codes of commands."""

    CREATE_PTAG = 1
    DESTROY_PTAG = 2
    REGISTER = 3
    DEREGISTER = 4
    CREATE_VI = 5
    DESTROY_VI = 6
    CONNECT = 7
    CONNECT_PEER = 8
    WAIT = 9
    ACCEPT = 10
    REJECT = 11
    DISCONNECT = 12
    NEXT_ERROR = 13
    OPEN = 14
    CLOSE = 15
    QUERY_VI = 16
    SET_VI = 17
    SET_MEMORY = 18
    ALARM = 19
    CANCEL = 20


class Command(NamedTuple):
    """A command or its result. status: `vipl_names.Result`, of a result. number: memory handle or node; slot of the
    alarm to cancel; of an asynchronous error 1 if the VI is in the error state. address: address of memory, or a time-out in
    ns (0: none). value: attributes and a reliability level, a connection request's number, a VI's state, or an asynchronous
    error's code. size: bytes of memory, or maximum bytes of a transfer. name: a discriminator. In the result of a wait for a
    connection request: ptag is the reliability level, and vi is 1 for a peer-to-peer request."""

    op: int
    vi: int = 0
    number: int = 0
    ptag: int = 0
    address: int = 0
    size: int = 0
    value: int = 0
    name: bytes = b""
    status: int = 0


class MalformedDescriptorError(ValueError):
    """A descriptor has a wrong format."""


def doorbell(queue: int, vi: int, slot: int) -> int:
    """Encode a doorbell."""
    return (vi << 16 | slot) << 2 | queue


def decode_doorbell(index: int) -> tuple[int, int, int]:
    """Decode a doorbell: queue, VI, slot."""
    return index & 3, index >> 18, index >> 2 & 0xFFFF


class Slots:
    """The memory of descriptors and commands. count: number of slots."""

    def __init__(self, count: int, memory: memoryview | None = None) -> None:
        self.count: Final = count
        self.memory = memoryview(bytearray(count * SIZE)) if memory is None else memory

    def write(
        self, slot: int, control: int, immediate: int, length: int, remote: Segment | None, data: Sequence[Segment]
    ) -> int:
        """Write a descriptor, whose fields are those of `PostedDescriptor`; return its size in bytes. Raises
        MalformedDescriptorError for too many segments, and for a value that does not fit its field."""
        segments = data if remote is None else [remote, *data]
        count = len(segments)
        if count > MAX_SEGMENTS:
            raise MalformedDescriptorError(f"a descriptor has at most {MAX_SEGMENTS} segments, got {count}")
        offset = slot * SIZE
        end = offset + _CONTROL_SIZE
        try:
            _CONTROL.pack_into(self.memory, offset, 0, 0, count, control, 0, immediate, length, 0)
            for segment in segments:
                _SEGMENT.pack_into(self.memory, end, segment.address, segment.handle, segment.length)
                end += _SEGMENT_SIZE
        except struct.error as error:
            raise MalformedDescriptorError(f"a field of the descriptor: {error}") from error
        return end - offset

    def read(self, slot: int) -> PostedDescriptor:
        """Read a descriptor. Raises MalformedDescriptorError."""
        offset = slot * SIZE
        fields: tuple[int, int, int, int] = _REQUEST.unpack_from(self.memory, offset)
        count, control, immediate, length = fields
        if count > MAX_SEGMENTS:
            raise MalformedDescriptorError(f"a descriptor has at most {MAX_SEGMENTS} segments, got {count}")
        segments: list[Segment] = []
        for begin in range(offset + _CONTROL_SIZE, offset + _CONTROL_SIZE + count * _SEGMENT_SIZE, _SEGMENT_SIZE):
            segment: tuple[int, int, int] = _SEGMENT.unpack_from(self.memory, begin)
            address, handle, size = segment
            segments.append(Segment(address, handle, size))
        remote = None
        if control & OP_MASK in (OP_RDMAWRITE, OP_RDMAREAD):
            if not segments:
                raise MalformedDescriptorError("an RDMA descriptor has no address segment")
            remote = segments.pop(0)
        return PostedDescriptor(control, immediate, length, remote, segments)

    def finish(self, slot: int, status: int, length: int, immediate: int) -> None:
        """Write a descriptor's result."""
        _STATUS.pack_into(self.memory, slot * SIZE + _STATUS_OFFSET, immediate, length, status)

    def result(self, slot: int) -> tuple[int, int, int]:
        """Read a descriptor's result: immediate data, length, status."""
        result: tuple[int, int, int] = _STATUS.unpack_from(self.memory, slot * SIZE + _STATUS_OFFSET)
        return result

    def write_command(self, slot: int, command: Command) -> None:
        """Write a command or its result."""
        op, vi, number, ptag, address, size, value, name, status = command
        _COMMAND.pack_into(
            self.memory, slot * SIZE, op, status, vi, number, ptag, address, size, value, len(name), name
        )

    def read_command(self, slot: int) -> Command:
        """Read a command or its result."""
        op, status, vi, number, ptag, address, size, value, length, name = _COMMAND.unpack_from(
            self.memory, slot * SIZE
        )
        return Command(op, vi, number, ptag, address, size, value, name[:length], status)

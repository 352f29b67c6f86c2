"""Buffers of collective calls: contiguous memory for the algorithms, in one piece or one block per rank or neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocols.mpi.buffers import as_receive_buffer, as_send_data
from protocols.mpi.iovec import Data, IoVec
from protocols.mpi.mpi_errors import ERR_BUFFER, ERR_COUNT, MPIError


class ContiguousBuffer:
    """A buffer as contiguous memory. data: the buffer's bytes; for an I/O vector, a copy of them."""

    __slots__ = ("_iov", "data")

    def __init__(self, buffer: Data, is_input: bool = False) -> None:
        """buffer: the message's memory. is_input: whether the call reads its contents, so that they are copied at once."""
        self._iov = buffer if isinstance(buffer, IoVec) else None
        self.data = memoryview(bytearray(len(buffer))) if isinstance(buffer, IoVec) else buffer
        if is_input:
            self.gather()

    def gather(self) -> None:
        """Copy the segments of an I/O vector to `data`."""
        if self._iov is not None:
            self.data[:] = self._iov.gather()

    def scatter(self) -> None:
        """Copy `data` to the segments of an I/O vector."""
        if self._iov is not None:
            self._iov.scatter(self.data)


class BlockBuffers:
    """Blocks of a buffer, one for each rank or neighbour. data: the blocks as contiguous memory."""

    __slots__ = ("_blocks", "data")

    def __init__(self, buffers: Sequence[Data], is_input: bool = False) -> None:
        self._blocks = [ContiguousBuffer(buffer, is_input) for buffer in buffers]
        self.data = [block.data for block in self._blocks]

    def scatter(self) -> None:
        for block in self._blocks:
            block.scatter()


def split_equally(data: memoryview, block_count: int) -> list[memoryview]:
    """Split bytes into blocks of equal size."""
    block_size = len(data) // block_count if block_count else 0
    return [data[number * block_size : (number + 1) * block_size] for number in range(block_count)]


def typed_blocks(message: Sequence[Any], block_count: int, write: bool) -> list[Data]:
    """Return the blocks of an Alltoallw argument, one for each rank or neighbour. message: [buffer, (counts, displacements),
    datatypes], or [buffer, counts, displacements, datatypes]; displacements in bytes, 0 or more. write: whether the
    buffer must be writable. Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE."""
    parts = list(message)
    if len(parts) == 3 and isinstance(parts[1], tuple):
        parts[1:2] = parts[1]
    if len(parts) != 4 or any(len(part) != block_count for part in parts[1:]):
        raise MPIError(
            ERR_BUFFER,
            f"a message must be [buffer, (counts, displacements), datatypes], with {block_count} elements in each list",
        )
    convert = as_receive_buffer if write else as_send_data
    buffer = convert(parts[0])
    if not isinstance(buffer, memoryview):
        raise MPIError(ERR_BUFFER, "the first part of a message must be a buffer without a datatype of its own")
    if any(displacement < 0 for displacement in parts[2]):
        raise MPIError(ERR_COUNT, f"displacements must be 0 or more, got {list(parts[2])}")
    return [
        convert([buffer[displacement:], count, datatype])
        for count, displacement, datatype in zip(*parts[1:], strict=True)
    ]

"""Buffers of collective calls: contiguous memory for the algorithms, whole or as one block for each rank or neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocols.mpi.buffers import as_receive_buffer, as_send_data
from protocols.mpi.iovec import Data, IoVec
from protocols.mpi.mpi_errors import ERR_BUFFER, MPIError


class ContiguousBuffer:
    """A buffer as contiguous memory. data: the bytes; a copy for an I/O vector."""

    __slots__ = ("_iov", "data")

    def __init__(self, buffer: Data, is_input: bool = False) -> None:
        """buffer: the message's memory. is_input: whether its contents are input of the call."""
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


def split_equally(data: memoryview, number: int) -> list[memoryview]:
    block_size = len(data) // number if number else 0
    return [data[rank * block_size : (rank + 1) * block_size] for rank in range(number)]


def typed_blocks(message: Sequence[Any], number: int, write: bool) -> list[Data]:
    """Return the blocks of an Alltoallw argument, one for each rank or neighbour."""
    parts = list(message)
    if len(parts) == 3 and isinstance(parts[1], tuple):
        parts[1:2] = parts[1]
    if len(parts) != 4 or any(len(part) != number for part in parts[1:]):
        raise MPIError(
            ERR_BUFFER,
            f"Alltoallw takes [buffer, (counts, displacements), datatypes], each of {number} elements",
        )
    buffer = as_receive_buffer(parts[0]) if write else as_send_data(parts[0])
    assert isinstance(buffer, memoryview)
    convert = as_receive_buffer if write else as_send_data
    return [
        convert([buffer[displacement:], count, datatype])
        for count, displacement, datatype in zip(*parts[1:], strict=True)
    ]

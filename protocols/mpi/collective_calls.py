"""Collective calls on buffers, with mpi4py's names, as coroutines. MPI 4.1, chapter 6; `collectives` has the algorithms.

Every rank of a communicator makes its collective calls in the same order. Their messages are of a context of the
library's own; each call's have a tag of their own, an even one (continuations of objects have odd ones), so that
non-blocking calls may be in progress at once.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from protocols.mpi.buffers import Message, equal_blocks, as_send_data, reduction_operand, vector_blocks, as_receive_buffer
from protocols.mpi.collectives import choices, objects, rooted, unrooted
from protocols.mpi.collectives.collective_exchange import Exchange
from protocols.mpi.collectives.reductions import (
    Reduction,
    allreduce_doubling,
    allreduce_in_parts,
    reduce_scatter_pairwise,
    scan_doubling,
)
from protocols.mpi.constants import ANY_SOURCE, InPlace
from protocols.mpi.device import CallArguments, Communicator, Device
from protocols.mpi.iovec import Data, IoVec, to_contiguous
from protocols.mpi.mailbox import Mailbox
from protocols.mpi.mpi_errors import (
    ERR_BUFFER,
    ERR_COMM,
    ERR_COUNT,
    ERR_ROOT,
    ERR_TYPE,
    MPIError,
)
from protocols.mpi.operations import SUM, Op
from protocols.mpi.point_to_point import NULL, PointToPoint
from protocols.mpi.send_buffer import SendBuffer

T = TypeVar("T")


class CollectiveCalls(PointToPoint):
    """Collective calls of a communicator.

    algorithms: names of the algorithms of collective calls, where the program chooses: see `collectives.choices`. Equal at
    all ranks.

    Raises MPIError: ERR_ROOT for an invalid root; ERR_COUNT where a rank's own buffers do not fit each other; ERR_TRUNCATE
    where another rank's do not fit them; ERR_OP and ERR_TYPE for reductions of what an operation is not defined for;
    ERR_PROC_FAILED where a rank is gone.
    """

    __slots__ = ("_calls", "algorithms")

    def __init__(
        self,
        device: Device,
        context: int = 0,
        ranks: Sequence[int] | None = None,
        send_buffer: SendBuffer | None = None,
    ) -> None:
        super().__init__(device, context, ranks, send_buffer)
        self._calls = 0  # collective ones so far
        self.algorithms = choices.Algorithms()

    async def Barrier(self) -> None:
        """Wait until every rank has called this."""
        await rooted.barrier(self._exchange("Barrier"))

    barrier = Barrier

    async def Bcast(self, buf: Message, root: int = 0) -> None:
        """Send the root's buffer to all."""
        self._check_collective("Bcast", root)
        data = as_send_data(buf) if self.rank == root else as_receive_buffer(buf)
        whole = _Contiguous(data, filled=self.rank == root)
        name = self.algorithms.get("Bcast") or choices.bcast(self.size, len(data))
        broadcast = rooted.broadcast_binomial if name == "binomial" else rooted.broadcast_in_parts
        await broadcast(self._exchange("Bcast", root=root, size=len(data)), whole.data, root)
        if self.rank != root:
            whole.scatter()

    async def Gather(self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0) -> None:
        """Gather equal blocks at the root, by rank."""
        self._check_collective("Gather", root)
        out = _Contiguous(equal_blocks(recvbuf, self.size, True)) if self.rank == root else None
        block = self._own(out, "Gather") if isinstance(sendbuf, InPlace) else to_contiguous(as_send_data(sendbuf))
        if out is not None and len(block) * self.size != len(out.data):
            raise _unequal("Gather", len(block), len(out.data), self.size)
        await rooted.gather_binomial(
            self._exchange("Gather", root=root, size=len(block)), block, root, None if out is None else out.data
        )
        if out is not None:
            out.scatter()

    async def Gatherv(self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0) -> None:
        """Gather blocks of any sizes at the root. recvbuf: [buffer, counts, displacements, datatype]."""
        self._check_collective("Gatherv", root)
        is_in_place = isinstance(sendbuf, InPlace)
        out = _Blocks(vector_blocks(recvbuf, self.size, True), filled=is_in_place) if self.rank == root else None
        if isinstance(sendbuf, InPlace):
            if out is None:
                raise _not_in_place("Gatherv")
            block = out.data[self.rank]
        else:
            block = to_contiguous(as_send_data(sendbuf))
            if out is not None and len(block) != len(out.data[self.rank]):
                raise _unequal("Gatherv", len(block), len(out.data[self.rank]), 1)
        await rooted.gather_linear(
            self._exchange("Gatherv", root=root, out=[len(block)], into=_sizes(out)),
            block,
            root,
            None if out is None else out.data,
        )
        if out is not None:
            out.scatter()

    async def Scatter(self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0) -> None:
        """Scatter the root's equal blocks, by rank."""
        self._check_collective("Scatter", root)
        data = to_contiguous(equal_blocks(sendbuf, self.size, False)) if self.rank == root else None
        if isinstance(recvbuf, InPlace):
            if data is None:
                raise _not_in_place("Scatter")
            own = _Contiguous(memoryview(bytearray(len(data) // self.size)))
        else:
            own = _Contiguous(as_receive_buffer(recvbuf))
        if data is not None and len(own.data) * self.size != len(data):
            raise _unequal("Scatter", len(own.data), len(data), self.size)
        await rooted.scatter_binomial(self._exchange("Scatter", root=root, size=len(own.data)), data, root, own.data)
        own.scatter()

    async def Scatterv(self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0) -> None:
        """Scatter the root's blocks of any sizes. sendbuf: [buffer, counts, displacements, datatype]."""
        self._check_collective("Scatterv", root)
        data = [to_contiguous(block) for block in vector_blocks(sendbuf, self.size, False)] if self.rank == root else None
        if isinstance(recvbuf, InPlace):
            if data is None:
                raise _not_in_place("Scatterv")
            own = _Contiguous(memoryview(bytearray(len(data[self.rank]))))
        else:
            own = _Contiguous(as_receive_buffer(recvbuf))
        if data is not None and len(own.data) != len(data[self.rank]):
            raise _unequal("Scatterv", len(own.data), len(data[self.rank]), 1)
        sizes = None if data is None else [len(block) for block in data]
        exchange = self._exchange("Scatterv", root=root, out=sizes, into=[len(own.data)])
        await rooted.scatter_linear(exchange, data, root, own.data)
        own.scatter()

    async def Allgather(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Gather equal blocks at all ranks."""
        self._check_collective("Allgather")
        out = _Contiguous(equal_blocks(recvbuf, self.size, True), filled=isinstance(sendbuf, InPlace))
        step = len(out.data) // self.size
        if not isinstance(sendbuf, InPlace):
            block = to_contiguous(as_send_data(sendbuf))
            if len(block) != step:
                raise _unequal("Allgather", len(block), len(out.data), self.size)
            out.data[self.rank * step : (self.rank + 1) * step] = block
        name = self.algorithms.get("Allgather") or choices.allgather(self.size, len(out.data))
        if name == "doubling" and not self.size & self.size - 1:
            await unrooted.allgather_doubling(self._exchange("Allgather", size=step), out.data)
        elif name == "ring":
            await unrooted.allgather_ring(self._exchange("Allgather", size=step), _cut(out.data, self.size))
        else:
            await unrooted.allgather_bruck(self._exchange("Allgather", size=step), out.data)
        out.scatter()

    async def Allgatherv(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Gather blocks of any sizes at all ranks. recvbuf: [buffer, counts, displacements, datatype]."""
        self._check_collective("Allgatherv")
        out = _Blocks(vector_blocks(recvbuf, self.size, True), filled=isinstance(sendbuf, InPlace))
        if not isinstance(sendbuf, InPlace):
            block = to_contiguous(as_send_data(sendbuf))
            if len(block) != len(out.data[self.rank]):
                raise _unequal("Allgatherv", len(block), len(out.data[self.rank]), 1)
            out.data[self.rank][:] = block
        sizes = [len(block) for block in out.data]
        exchange = self._exchange("Allgatherv", out=[sizes[self.rank]], into=sizes)
        await unrooted.allgather_ring(exchange, out.data)
        out.scatter()

    async def Alltoall(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Send the k-th of equal blocks to rank k."""
        self._check_collective("Alltoall")
        out = _Contiguous(equal_blocks(recvbuf, self.size, True), filled=isinstance(sendbuf, InPlace))
        data = (
            memoryview(bytes(out.data)) if isinstance(sendbuf, InPlace) else to_contiguous(equal_blocks(sendbuf, self.size, False))
        )
        if len(data) != len(out.data):
            raise _unequal("Alltoall", len(data), len(out.data), 1)
        name = self.algorithms.get("Alltoall") or choices.alltoall(self.size, len(data) // self.size)
        if name == "bruck":
            await unrooted.alltoall_bruck(self._exchange("Alltoall", size=len(data) // self.size), data, out.data)
        else:
            exchange_all = unrooted.alltoall_spread if name == "spread" else unrooted.alltoall_pairwise
            await exchange_all(
                self._exchange("Alltoall", size=len(data) // self.size),
                _cut(data, self.size),
                _cut(out.data, self.size),
            )
        out.scatter()

    async def Alltoallv(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Send the k-th of blocks of any sizes to rank k. Both: [buffer, counts, displacements, datatype]."""
        out = _Blocks(vector_blocks(recvbuf, self.size, True), filled=isinstance(sendbuf, InPlace))
        if isinstance(sendbuf, InPlace):
            data = [memoryview(bytes(block)) for block in out.data]
        else:
            data = [to_contiguous(block) for block in vector_blocks(sendbuf, self.size, False)]
        await self._alltoall_any("Alltoallv", data, out)

    async def Alltoallw(self, sendbuf: Sequence[Any] | InPlace, recvbuf: Sequence[Any]) -> None:
        """Send blocks of any sizes and datatypes. Both: [buffer, (counts, displacements), datatypes], displacements in
        bytes, or [buffer, counts, displacements, datatypes]."""
        out = _Blocks(_blocks_of_types(recvbuf, self.size, True), filled=isinstance(sendbuf, InPlace))
        if isinstance(sendbuf, InPlace):
            data = [memoryview(bytes(block)) for block in out.data]
        else:
            data = [to_contiguous(block) for block in _blocks_of_types(sendbuf, self.size, False)]
        await self._alltoall_any("Alltoallw", data, out)

    async def _alltoall_any(self, call: str, data: list[memoryview], out: _Blocks) -> None:
        self._check_collective(call)
        if len(data[self.rank]) != len(out.data[self.rank]):
            raise _unequal(call, len(data[self.rank]), len(out.data[self.rank]), 1)
        exchange = self._exchange(call, out=[len(block) for block in data], into=[len(block) for block in out.data])
        await unrooted.alltoall_spread(exchange, data, out.data)
        out.scatter()

    async def Reduce(
        self, sendbuf: Message | InPlace, recvbuf: Message | InPlace = None, op: Op = SUM, root: int = 0
    ) -> None:
        """Combine all ranks' items at the root."""
        self._check_collective("Reduce", root)
        out, data, reduction = self._reduction(
            "Reduce", sendbuf, recvbuf if self.rank == root else None, op, self.rank == root
        )
        way = self.algorithms.get("Reduce") or self._way(reduction, data)
        reduce = rooted.reduce_in_parts if way == "parts" and op.commutes else rooted.reduce_binomial
        await reduce(self._reducing("Reduce", reduction, len(data), root), reduction, data, root)
        if out is not None:
            out[:] = data

    async def Allreduce(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine all ranks' items at all of them."""
        self._check_collective("Allreduce")
        out, data, reduction = self._reduction("Allreduce", sendbuf, recvbuf, op)
        assert out is not None
        way = self.algorithms.get("Allreduce") or self._way(reduction, data)
        allreduce = allreduce_in_parts if way == "parts" and op.commutes else allreduce_doubling
        await allreduce(self._reducing("Allreduce", reduction, len(data)), reduction, data)
        out[:] = data

    async def Reduce_scatter_block(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine all ranks' items; rank k gets the k-th of equal blocks."""
        step = None if isinstance(sendbuf, InPlace) else len(as_send_data(sendbuf)) // self.size
        await self._reduce_scatter("Reduce_scatter_block", sendbuf, recvbuf, None, step, op)

    async def Reduce_scatter(
        self,
        sendbuf: Message | InPlace,
        recvbuf: Message,
        recvcounts: Sequence[int] | None = None,
        op: Op = SUM,
    ) -> None:
        """Combine all ranks' items; rank k gets the next recvcounts[k] items. Without counts, each rank's receive buffer
        says its own."""
        if recvcounts is None and not isinstance(sendbuf, InPlace):
            data, datatype = reduction_operand(recvbuf, True)
            recvcounts = await objects.allgather(self._exchange("Reduce_scatter"), len(data) // datatype.extent)
        await self._reduce_scatter("Reduce_scatter", sendbuf, recvbuf, recvcounts, None, op)

    async def Scan(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine the items of this rank and all lower ones."""
        await self._scan("Scan", sendbuf, recvbuf, op, True)

    async def Exscan(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine the items of all lower ranks. Rank 0's receive buffer stays as it was."""
        await self._scan("Exscan", sendbuf, recvbuf, op, False)

    # For the calls.

    def _check_collective(self, call: str, root: int = 0) -> None:
        """Check a collective call, before its arguments. Raises MPIError: ERR_COMM for a communicator that was freed,
        ERR_ROOT."""
        if not self.size:
            raise MPIError(ERR_COMM, NULL)
        if not 0 <= root < self.size:
            raise MPIError(ERR_ROOT, f"{call}: a root of {root}: 0 to {self.size - 1}")
        if self.lost_sends.known:
            self._check_losses(ANY_SOURCE)
        rank_failures = self._device.rank_failures
        if rank_failures.known and self.size > 1 and (error := rank_failures.error(call, self.size, self._peer)) is not None:
            raise error

    def _exchange(
        self,
        call: str,
        *,
        root: int | None = None,
        size: int = -1,
        op: str = "",
        datatype: str = "",
        out: Sequence[int] | None = None,
        into: Sequence[int] | None = None,
    ) -> Exchange:
        """Begin a collective call whose arguments are right: a refused one must not count, since ranks count alike. For the
        arguments see `CallArguments`. Raises as `_check_collective`."""
        self._check_collective(call, 0 if root is None else root)
        device = self._device
        if device.mailbox_slots and device.mailbox is None:
            device.mailbox = Mailbox(device, device.mailbox_slots)
        number, context = self._calls, self._contexts[1]
        self._calls += 1
        arguments = CallArguments(-1 if root is None else root, size, op, datatype, out, into)
        device.note_collective(call, Communicator(context, self._ranks, number), arguments)
        tag = 2 * (number % (device.max_tag // 2))
        return Exchange(call, device, self._peer, self.rank, self.size, context, tag)

    def _reducing(self, call: str, reduction: Reduction, size: int, root: int | None = None) -> Exchange:
        """Begin a reduction of so many bytes."""
        return self._exchange(call, root=root, size=size, op=reduction.op.name, datatype=reduction.datatype.name)

    def _own(self, out: _Contiguous | None, call: str) -> memoryview:
        """Return this rank's block of the root's receive buffer, for IN_PLACE."""
        if out is None:
            raise _not_in_place(call)
        out.gather()
        step = len(out.data) // self.size
        return out.data[self.rank * step : (self.rank + 1) * step]

    def _reduction(
        self, call: str, sendbuf: Message | InPlace, recvbuf: Message | InPlace, op: Op, receives: bool = True
    ) -> tuple[memoryview | None, memoryview, Reduction]:
        """Return the result's place, if this rank gets one, a copy of the operand, and what reduces it."""
        if isinstance(recvbuf, InPlace) or (isinstance(sendbuf, InPlace) and not receives):
            raise _not_in_place(call)
        out = reduction_operand(recvbuf, True) if receives else None
        if isinstance(sendbuf, InPlace):
            assert out is not None
            data, datatype = out
        else:
            data, datatype = reduction_operand(sendbuf, False)
            if out is not None and len(out[0]) != len(data):
                raise _unequal(call, len(data), len(out[0]), 1)
        if datatype.extent and len(data) % datatype.extent:
            raise MPIError(ERR_TYPE, f"{call}: {len(data)} bytes are no whole items of {datatype.name}")
        return None if out is None else out[0], memoryview(bytearray(data)), Reduction(op, datatype)

    def _way(self, reduction: Reduction, data: memoryview) -> str:
        items = len(data) // (reduction.datatype.extent or 1)
        return choices.reduce(self.size, len(data), reduction.commutes, items)

    async def _reduce_scatter(
        self,
        call: str,
        sendbuf: Message | InPlace,
        recvbuf: Message,
        counts: Sequence[int] | None,
        step: int | None,
        op: Op,
    ) -> None:
        """counts: items of each rank. step: bytes of each rank's block, in place of counts."""
        self._check_collective(call)
        out, datatype = reduction_operand(recvbuf, True)
        data = memoryview(bytearray(out if isinstance(sendbuf, InPlace) else reduction_operand(sendbuf, False)[0]))
        if counts is None:
            step = len(data) // self.size if step is None else step
            sizes = [step] * self.size
        else:
            sizes = [count * datatype.extent for count in counts]
        if len(sizes) != self.size or sum(sizes) != len(data):
            raise MPIError(ERR_COUNT, f"{call}: {len(data)} bytes are to be cut into {sizes}, for {self.size} ranks")
        mine = out[: sizes[self.rank]]
        if len(mine) != sizes[self.rank]:
            raise _unequal(call, sizes[self.rank], len(out), 1)
        ends = [sum(sizes[: rank + 1]) for rank in range(self.size)]
        cuts = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        reduction = Reduction(op, datatype)
        exchange = self._reducing(call, reduction, len(data))
        if op.commutes:
            await reduce_scatter_pairwise(exchange, reduction, data, cuts, mine)
        else:
            await rooted.reduce_binomial(exchange, reduction, data, 0)
            await rooted.scatter_linear(exchange, [data[slice(*cut)] for cut in cuts], 0, mine)

    async def _scan(self, call: str, sendbuf: Message | InPlace, recvbuf: Message, op: Op, inclusive: bool) -> None:
        self._check_collective(call)
        out, data, reduction = self._reduction(call, sendbuf, recvbuf, op)
        assert out is not None
        await scan_doubling(self._reducing(call, reduction, len(data)), reduction, data, inclusive)
        if inclusive or self.rank:
            out[:] = data


class _Contiguous:
    """A receive buffer as contiguous bytes. data: the bytes, a copy if it is an I/O vector."""

    __slots__ = ("_pieces", "data")

    def __init__(self, data: Data, filled: bool = False) -> None:
        """filled: its present contents count."""
        self._pieces = data if isinstance(data, IoVec) else None
        self.data = memoryview(bytearray(len(data))) if isinstance(data, IoVec) else data
        if filled:
            self.gather()

    def gather(self) -> None:
        """Copy the pieces' contents."""
        if self._pieces is not None:
            self.data[:] = self._pieces.gather()

    def scatter(self) -> None:
        """Copy the bytes to the pieces."""
        if self._pieces is not None:
            self._pieces.scatter(self.data)


class _Blocks:
    """Receive buffers of all ranks. data: contiguous bytes of each."""

    __slots__ = ("_all", "data")

    def __init__(self, several: Sequence[Data], filled: bool = False) -> None:
        self._all = [_Contiguous(data, filled) for data in several]
        self.data = [each.data for each in self._all]

    def scatter(self) -> None:
        for each in self._all:
            each.scatter()


def _sizes(out: _Blocks | None) -> list[int] | None:
    return None if out is None else [len(block) for block in out.data]


def _cut(data: memoryview, number: int) -> list[memoryview]:
    step = len(data) // number
    return [data[place * step : (place + 1) * step] for place in range(number)]


def _blocks_of_types(message: Sequence[Any], number: int, write: bool) -> list[Data]:
    """Return the blocks of an Alltoallw argument, one for each rank."""
    parts = list(message)
    if len(parts) == 3 and isinstance(parts[1], tuple):
        parts[1:2] = parts[1]
    if len(parts) != 4 or any(len(part) != number for part in parts[1:]):
        raise MPIError(ERR_BUFFER, f"Alltoallw takes [buffer, (counts, displacements), datatypes], {number} of each")
    whole = as_receive_buffer(parts[0]) if write else as_send_data(parts[0])
    assert isinstance(whole, memoryview)
    convert = as_receive_buffer if write else as_send_data
    return [convert([whole[place:], count, each]) for count, place, each in zip(*parts[1:], strict=True)]


def _unequal(call: str, own: int, other: int, number: int) -> MPIError:
    blocks = f"{number} blocks of " if number > 1 else ""
    return MPIError(ERR_COUNT, f"{call}: {blocks}{own} bytes do not fit the other buffer of {other} bytes")


def _not_in_place(call: str) -> MPIError:
    return MPIError(
        ERR_BUFFER, f"{call}: IN_PLACE stands only for the buffer that MPI says, and only at the root if there is one"
    )

"""Collective calls on buffers, with mpi4py's names, as coroutines. MPI 4.1, chapter 6; `collectives` has the algorithms.

Every rank of a communicator makes its collective calls in the same order. The messages of these calls use a context of the
library's own. Each call has a tag of its own, so that several non-blocking calls may be in progress; the tag is even, since
continuations of objects use the odd tags.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from protocols.mpi.block_buffers import BlockBuffers, ContiguousBuffer, split_equally, typed_blocks
from protocols.mpi.buffers import (
    Message,
    as_receive_buffer,
    as_send_data,
    equal_blocks,
    reduction_operand,
    vector_blocks,
)
from protocols.mpi.collectives import choices, objects, rooted, unrooted
from protocols.mpi.collectives.collective_exchange import Exchange
from protocols.mpi.collectives.reductions import (
    Reduction,
    allreduce_doubling,
    allreduce_rabenseifner,
    reduce_scatter_pairwise,
    scan_doubling,
)
from protocols.mpi.constants import ANY_SOURCE, IN_PLACE, InPlace
from protocols.mpi.device import CallArguments, Communicator, Device
from protocols.mpi.iovec import to_contiguous
from protocols.mpi.mailbox import Mailbox
from protocols.mpi.mpi_errors import (
    ERR_BUFFER,
    ERR_COMM,
    ERR_COUNT,
    ERR_ROOT,
    ERR_TYPE,
    ArgumentValueError,
    MPIError,
    check_type,
)
from protocols.mpi.operations import SUM, Op
from protocols.mpi.point_to_point import COMM_NULL_ERROR, PointToPoint
from protocols.mpi.send_buffer import SendBuffer

T = TypeVar("T")


class CollectiveCalls(PointToPoint):
    """Collective calls of a communicator.

    algorithms: names of the algorithms that the program chooses, by call (`collectives.choices`); they must be equal at all
    ranks.

    Calls raise MPIError: ERR_ROOT for an invalid root; ERR_COUNT if a rank's own buffers do not fit each other;
    ERR_TRUNCATE if they do not fit those of another rank; ERR_OP and ERR_TYPE for a reduction of a datatype for which the
    operation is not defined; ERR_PROC_FAILED if a rank has failed, or a message was lost.
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
        self._calls = 0  # number of collective calls so far, which determines the tag of the next one
        self.algorithms = choices.Algorithms()

    async def Barrier(self) -> None:
        """Wait until every rank has called Barrier."""
        await rooted.barrier(self._begin_exchange("Barrier"))

    barrier = Barrier

    async def Bcast(self, buf: Message, root: int = 0) -> None:
        """Send the root's buffer to all ranks."""
        self._check_collective("Bcast", root)
        data = as_send_data(buf) if self.rank == root else as_receive_buffer(buf)
        buffer = ContiguousBuffer(data, is_input=self.rank == root)
        name = self.algorithms.get("Bcast") or choices.bcast(self.size, len(data))
        broadcast = rooted.broadcast_binomial if name == "binomial" else rooted.broadcast_scatter_allgather
        await broadcast(self._begin_exchange("Bcast", root=root, size=len(data)), buffer.data, root)
        if self.rank != root:
            buffer.scatter()

    async def Gather(self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0) -> None:
        """Gather equal blocks at the root, by rank."""
        self._check_collective("Gather", root)
        sendbuf = _as_in_place(sendbuf) if self.rank == root else sendbuf
        out = ContiguousBuffer(equal_blocks(recvbuf, self.size, True)) if self.rank == root else None
        block = self._own_block(out, "Gather") if isinstance(sendbuf, InPlace) else to_contiguous(as_send_data(sendbuf))
        if out is not None and len(block) * self.size != len(out.data):
            raise _size_mismatch("Gather", len(block), len(out.data), self.size)
        await rooted.gather_binomial(
            self._begin_exchange("Gather", root=root, size=len(block)), block, root, None if out is None else out.data
        )
        if out is not None:
            out.scatter()

    async def Gatherv(self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0) -> None:
        """Gather blocks of any sizes at the root. recvbuf: [buffer, counts, displacements, datatype]."""
        self._check_collective("Gatherv", root)
        sendbuf = _as_in_place(sendbuf) if self.rank == root else sendbuf
        is_in_place = isinstance(sendbuf, InPlace)
        out = BlockBuffers(vector_blocks(recvbuf, self.size, True), is_input=is_in_place) if self.rank == root else None
        if isinstance(sendbuf, InPlace):
            if out is None:
                raise _in_place_error("Gatherv")
            block = out.data[self.rank]
        else:
            block = to_contiguous(as_send_data(sendbuf))
            if out is not None and len(block) != len(out.data[self.rank]):
                raise _size_mismatch("Gatherv", len(block), len(out.data[self.rank]), 1)
        await rooted.gather_linear(
            self._begin_exchange("Gatherv", root=root, out=[len(block)], into=_sizes(out)),
            block,
            root,
            None if out is None else out.data,
        )
        if out is not None:
            out.scatter()

    async def Scatter(self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0) -> None:
        """Scatter the root's equal blocks, by rank."""
        self._check_collective("Scatter", root)
        recvbuf = _as_in_place(recvbuf) if self.rank == root else recvbuf
        data = to_contiguous(equal_blocks(sendbuf, self.size, False)) if self.rank == root else None
        if isinstance(recvbuf, InPlace):
            if data is None:
                raise _in_place_error("Scatter")
            own_buffer = ContiguousBuffer(memoryview(bytearray(len(data) // self.size)))
        else:
            own_buffer = ContiguousBuffer(as_receive_buffer(recvbuf))
        if data is not None and len(own_buffer.data) * self.size != len(data):
            raise _size_mismatch("Scatter", len(own_buffer.data), len(data), self.size)
        await rooted.scatter_binomial(
            self._begin_exchange("Scatter", root=root, size=len(own_buffer.data)), data, root, own_buffer.data
        )
        own_buffer.scatter()

    async def Scatterv(self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0) -> None:
        """Scatter the root's blocks of any sizes. sendbuf: [buffer, counts, displacements, datatype]."""
        self._check_collective("Scatterv", root)
        recvbuf = _as_in_place(recvbuf) if self.rank == root else recvbuf
        data = (
            [to_contiguous(block) for block in vector_blocks(sendbuf, self.size, False)] if self.rank == root else None
        )
        if isinstance(recvbuf, InPlace):
            if data is None:
                raise _in_place_error("Scatterv")
            own_buffer = ContiguousBuffer(memoryview(bytearray(len(data[self.rank]))))
        else:
            own_buffer = ContiguousBuffer(as_receive_buffer(recvbuf))
        if data is not None and len(own_buffer.data) != len(data[self.rank]):
            raise _size_mismatch("Scatterv", len(own_buffer.data), len(data[self.rank]), 1)
        sizes = None if data is None else [len(block) for block in data]
        exchange = self._begin_exchange("Scatterv", root=root, out=sizes, into=[len(own_buffer.data)])
        await rooted.scatter_linear(exchange, data, root, own_buffer.data)
        own_buffer.scatter()

    async def Allgather(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Gather equal blocks at all ranks."""
        self._check_collective("Allgather")
        sendbuf = _as_in_place(sendbuf)
        out = ContiguousBuffer(equal_blocks(recvbuf, self.size, True), is_input=isinstance(sendbuf, InPlace))
        block_size = len(out.data) // self.size
        if not isinstance(sendbuf, InPlace):
            block = to_contiguous(as_send_data(sendbuf))
            if len(block) != block_size:
                raise _size_mismatch("Allgather", len(block), len(out.data), self.size)
            out.data[self.rank * block_size : (self.rank + 1) * block_size] = block
        name = self.algorithms.get("Allgather") or choices.allgather(self.size, len(out.data))
        if name == "doubling" and not self.size & self.size - 1:
            await unrooted.allgather_doubling(self._begin_exchange("Allgather", size=block_size), out.data)
        elif name == "ring":
            await unrooted.allgather_ring(
                self._begin_exchange("Allgather", size=block_size), split_equally(out.data, self.size)
            )
        else:
            await unrooted.allgather_bruck(self._begin_exchange("Allgather", size=block_size), out.data)
        out.scatter()

    async def Allgatherv(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Gather blocks of any sizes at all ranks. recvbuf: [buffer, counts, displacements, datatype]."""
        self._check_collective("Allgatherv")
        sendbuf = _as_in_place(sendbuf)
        out = BlockBuffers(vector_blocks(recvbuf, self.size, True), is_input=isinstance(sendbuf, InPlace))
        if not isinstance(sendbuf, InPlace):
            block = to_contiguous(as_send_data(sendbuf))
            if len(block) != len(out.data[self.rank]):
                raise _size_mismatch("Allgatherv", len(block), len(out.data[self.rank]), 1)
            out.data[self.rank][:] = block
        sizes = [len(block) for block in out.data]
        exchange = self._begin_exchange("Allgatherv", out=[sizes[self.rank]], into=sizes)
        await unrooted.allgather_ring(exchange, out.data)
        out.scatter()

    async def Alltoall(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Send the k-th block to rank k; receive a block from each rank. All blocks have equal sizes."""
        self._check_collective("Alltoall")
        sendbuf = _as_in_place(sendbuf)
        out = ContiguousBuffer(equal_blocks(recvbuf, self.size, True), is_input=isinstance(sendbuf, InPlace))
        data = (
            memoryview(bytes(out.data))
            if isinstance(sendbuf, InPlace)
            else to_contiguous(equal_blocks(sendbuf, self.size, False))
        )
        if len(data) != len(out.data):
            raise _size_mismatch("Alltoall", len(data), len(out.data), 1)
        name = self.algorithms.get("Alltoall") or choices.alltoall(self.size, len(data) // self.size)
        if name == "bruck":
            await unrooted.alltoall_bruck(self._begin_exchange("Alltoall", size=len(data) // self.size), data, out.data)
        else:
            exchange_all = unrooted.alltoall_scattered if name == "scattered" else unrooted.alltoall_pairwise
            await exchange_all(
                self._begin_exchange("Alltoall", size=len(data) // self.size),
                split_equally(data, self.size),
                split_equally(out.data, self.size),
            )
        out.scatter()

    async def Alltoallv(self, sendbuf: Message | InPlace, recvbuf: Message) -> None:
        """Send the k-th block to rank k; receive a block from each rank. Blocks may have any sizes. sendbuf, recvbuf:
        [buffer, counts, displacements, datatype]."""
        self._check_collective("Alltoallv")
        sendbuf = _as_in_place(sendbuf)
        out = BlockBuffers(vector_blocks(recvbuf, self.size, True), is_input=isinstance(sendbuf, InPlace))
        if isinstance(sendbuf, InPlace):
            data = [memoryview(bytes(block)) for block in out.data]
        else:
            data = [to_contiguous(block) for block in vector_blocks(sendbuf, self.size, False)]
        await self._alltoall_blocks("Alltoallv", data, out)

    async def Alltoallw(self, sendbuf: Sequence[Any] | InPlace, recvbuf: Sequence[Any]) -> None:
        """Alltoall with blocks of any sizes and datatypes. sendbuf, recvbuf: [buffer, (counts, displacements),
        datatypes], or [buffer, counts, displacements, datatypes]; displacements in bytes."""
        self._check_collective("Alltoallw")
        sendbuf = _as_in_place(sendbuf)
        out = BlockBuffers(typed_blocks(recvbuf, self.size, True), is_input=isinstance(sendbuf, InPlace))
        if isinstance(sendbuf, InPlace):
            data = [memoryview(bytes(block)) for block in out.data]
        else:
            data = [to_contiguous(block) for block in typed_blocks(sendbuf, self.size, False)]
        await self._alltoall_blocks("Alltoallw", data, out)

    async def _alltoall_blocks(self, call: str, data: list[memoryview], out: BlockBuffers) -> None:
        if len(data[self.rank]) != len(out.data[self.rank]):
            raise _size_mismatch(call, len(data[self.rank]), len(out.data[self.rank]), 1)
        exchange = self._begin_exchange(
            call, out=[len(block) for block in data], into=[len(block) for block in out.data]
        )
        await unrooted.alltoall_scattered(exchange, data, out.data)
        out.scatter()

    async def Reduce(
        self, sendbuf: Message | InPlace, recvbuf: Message | InPlace = None, op: Op = SUM, root: int = 0
    ) -> None:
        """Combine all ranks' items at the root."""
        self._check_collective("Reduce", root)
        out, data, reduction = self._prepare_reduction(
            "Reduce", sendbuf, recvbuf if self.rank == root else None, op, self.rank == root
        )
        algorithm = self.algorithms.get("Reduce") or self._choose_reduction(choices.reduce, reduction, data)
        is_divided = algorithm == "reduce_scatter_gather" and op.commutes
        reduce = rooted.reduce_scatter_gather if is_divided else rooted.reduce_binomial
        await reduce(self._begin_reduction("Reduce", reduction, len(data), root), reduction, data, root)
        if out is not None:
            out[:] = data

    async def Allreduce(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine all ranks' items; every rank receives the result."""
        self._check_collective("Allreduce")
        out, data, reduction = self._prepare_reduction("Allreduce", sendbuf, recvbuf, op)
        assert out is not None
        algorithm = self.algorithms.get("Allreduce") or self._choose_reduction(choices.allreduce, reduction, data)
        is_divided = algorithm == "reduce_scatter_allgather" and op.commutes
        allreduce = allreduce_rabenseifner if is_divided else allreduce_doubling
        await allreduce(self._begin_reduction("Allreduce", reduction, len(data)), reduction, data)
        out[:] = data

    async def Reduce_scatter_block(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine all ranks' items; rank k receives the k-th block of the result. All blocks have equal sizes."""
        self._check_collective("Reduce_scatter_block")
        sendbuf = _as_in_place(sendbuf)
        block_size = None if isinstance(sendbuf, InPlace) else len(as_send_data(sendbuf)) // self.size
        await self._reduce_scatter("Reduce_scatter_block", sendbuf, recvbuf, None, block_size, op)

    async def Reduce_scatter(
        self,
        sendbuf: Message | InPlace,
        recvbuf: Message,
        recvcounts: Sequence[int] | None = None,
        op: Op = SUM,
    ) -> None:
        """Combine all ranks' items; rank k receives recvcounts[k] items of the result, those after the items of rank k - 1.
        recvcounts: None: the sizes of the ranks' receive buffers, or equal blocks of a buffer with IN_PLACE."""
        sendbuf = _as_in_place(sendbuf)
        if recvcounts is None and not isinstance(sendbuf, InPlace):
            data, datatype = reduction_operand(recvbuf, True)
            recvcounts = await objects.allgather(self._begin_exchange("Reduce_scatter"), len(data) // datatype.extent)
        await self._reduce_scatter("Reduce_scatter", sendbuf, recvbuf, recvcounts, None, op)

    async def Scan(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine the items of this rank and all lower ranks."""
        await self._scan("Scan", sendbuf, recvbuf, op, True)

    async def Exscan(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> None:
        """Combine the items of all lower ranks. Rank 0's receive buffer stays unchanged."""
        await self._scan("Exscan", sendbuf, recvbuf, op, False)

    # Common parts of the calls.

    def _check_collective(self, call: str, root: int = 0) -> None:
        """Check communicator, root and ranks of a collective call. Raises MPIError: ERR_COMM for COMM_NULL or a freed
        communicator, ERR_ROOT for an invalid root, ERR_PROC_FAILED for a lost message or a failed rank."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        if not 0 <= root < self.size:
            raise MPIError(ERR_ROOT, f"{call}: root must be 0 to {self.size - 1}, got {root}")
        if self.lost_sends.unreported:
            self._check_lost_sends(ANY_SOURCE)
        rank_failures = self._device.rank_failures
        if (
            rank_failures.reasons
            and self.size > 1
            and (error := rank_failures.error(call, self.size, self._device_rank)) is not None
        ):
            raise error

    def _begin_exchange(
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
        """Begin a collective call, after its arguments have been checked: a rejected call must not be counted, since the
        counts of all ranks must agree. For the arguments see `CallArguments`. Raises as `_check_collective`."""
        self._check_collective(call, 0 if root is None else root)
        device = self._device
        if device.mailbox_slots and device.mailbox is None:
            device.mailbox = Mailbox(device, device.mailbox_slots)
        number, context = self._calls, self._contexts[1]
        self._calls += 1
        arguments = CallArguments(-1 if root is None else root, size, op, datatype, out, into)
        device.note_collective(call, Communicator(context, self._ranks, number), arguments)
        tag = 2 * (number % (device.max_tag // 2))
        return Exchange(call, device, self._device_rank, self.rank, self.size, context, tag)

    def _begin_reduction(self, call: str, reduction: Reduction, size: int, root: int | None = None) -> Exchange:
        """Begin a reduction of `size` bytes. Raises MPIError (ERR_OP) if the operation is not defined for the datatype."""
        if size:  # without this check, only the ranks that combine items would raise the error
            reduction.op.check(reduction.datatype)
        return self._begin_exchange(call, root=root, size=size, op=reduction.op.name, datatype=reduction.datatype.name)

    def _own_block(self, out: ContiguousBuffer | None, call: str) -> memoryview:
        """Return this rank's block of the root's receive buffer, for IN_PLACE."""
        if out is None:
            raise _in_place_error(call)
        out.gather()
        block_size = len(out.data) // self.size
        return out.data[self.rank * block_size : (self.rank + 1) * block_size]

    def _prepare_reduction(
        self, call: str, sendbuf: Message | InPlace, recvbuf: Message | InPlace, op: Op, receives: bool = True
    ) -> tuple[memoryview | None, memoryview, Reduction]:
        """Return the receive buffer (None if this rank receives no result), a copy of the operand, and the reduction."""
        check_type(op, Op)
        sendbuf = _as_in_place(sendbuf) if receives else sendbuf
        if isinstance(recvbuf, InPlace) or (isinstance(sendbuf, InPlace) and not receives):
            raise _in_place_error(call)
        out = reduction_operand(recvbuf, True) if receives else None
        if isinstance(sendbuf, InPlace):
            assert out is not None
            data, datatype = out
        else:
            data, datatype = reduction_operand(sendbuf, False)
            if out is not None and len(out[0]) != len(data):
                raise _size_mismatch(call, len(data), len(out[0]), 1)
        if datatype.extent and len(data) % datatype.extent:
            raise ArgumentValueError(
                ERR_TYPE,
                f"{call}: {len(data)} bytes are not whole items of {datatype.name}, of {datatype.extent} bytes",
            )
        return None if out is None else out[0], memoryview(bytearray(data)), Reduction(op, datatype)

    def _choose_reduction(
        self, choose: Callable[[int, int, bool, int], str], reduction: Reduction, data: memoryview
    ) -> str:
        items = len(data) // (reduction.datatype.extent or 1)
        return choose(self.size, len(data), reduction.commutes, items)

    async def _reduce_scatter(
        self,
        call: str,
        sendbuf: Message | InPlace,
        recvbuf: Message,
        counts: Sequence[int] | None,
        block_size: int | None,
        op: Op,
    ) -> None:
        """Reduce, and scatter the result. counts: items of each rank; None: `block_size` bytes for each rank."""
        check_type(op, Op)
        self._check_collective(call)
        out, datatype = reduction_operand(recvbuf, True)
        data = memoryview(bytearray(out if isinstance(sendbuf, InPlace) else reduction_operand(sendbuf, False)[0]))
        if counts is None:
            block_size = len(data) // self.size if block_size is None else block_size
            sizes = [block_size] * self.size
        else:
            sizes = [count * datatype.extent for count in counts]
        if len(sizes) != self.size or sum(sizes) != len(data):
            raise ArgumentValueError(
                ERR_COUNT,
                f"{call}: {len(data)} bytes cannot be divided into blocks of {sizes} bytes for {self.size} ranks",
            )
        own_block = out[: sizes[self.rank]]
        if len(own_block) != sizes[self.rank]:
            raise _size_mismatch(call, sizes[self.rank], len(out), 1)
        ends = [sum(sizes[: rank + 1]) for rank in range(self.size)]
        bounds = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        reduction = Reduction(op, datatype)
        exchange = self._begin_reduction(call, reduction, len(data))
        if op.commutes:
            await reduce_scatter_pairwise(exchange, reduction, data, bounds, own_block)
        else:
            await rooted.reduce_binomial(exchange, reduction, data, 0)
            await rooted.scatter_linear(exchange, [data[begin:end] for begin, end in bounds], 0, own_block)

    async def _scan(self, call: str, sendbuf: Message | InPlace, recvbuf: Message, op: Op, inclusive: bool) -> None:
        self._check_collective(call)
        out, data, reduction = self._prepare_reduction(call, sendbuf, recvbuf, op)
        assert out is not None
        await scan_doubling(self._begin_reduction(call, reduction, len(data)), reduction, data, inclusive)
        if inclusive or self.rank:
            out[:] = data


def _as_in_place(buffer: T | None) -> T | InPlace:
    """Return the buffer, or IN_PLACE for None, which has that meaning in mpi4py, too."""
    return IN_PLACE if buffer is None else buffer


def _sizes(out: BlockBuffers | None) -> list[int] | None:
    return None if out is None else [len(block) for block in out.data]


def _size_mismatch(call: str, block: int, buffer: int, number: int) -> MPIError:
    """Make the error for `number` blocks of `block` bytes that do not fill a buffer of `buffer` bytes."""
    blocks = f"{number} blocks of " if number > 1 else ""
    return ArgumentValueError(ERR_COUNT, f"{call}: {blocks}{block} bytes do not fit the other buffer of {buffer} bytes")


def _in_place_error(call: str) -> MPIError:
    return MPIError(
        ERR_BUFFER, f"{call}: IN_PLACE is not allowed for this buffer (in calls with a root, only the root may pass it)"
    )

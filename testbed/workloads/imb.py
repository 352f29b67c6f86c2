"""Intel MPI Benchmarks, IMB-MPI1: times of transfers and of collective calls, by IMB's definitions (Intel, "Intel MPI
Benchmarks User Guide and Methodology Description", version 2021, "IMB-MPI1 Benchmarks").

Each benchmark is measured for 2, 4, 8, ... and all ranks; PingPong and PingPing only for 2. A sample is a loop of calls
after a barrier; minimum, average and maximum are over the ranks' times per call. The root of rooted calls rotates.
Bandwidth counts the messages that a rank sends and receives in a call: one for PingPong and PingPing, two for Sendrecv, four
for Exchange.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias

from protocols.mpi.constants import UNDEFINED
from protocols.mpi.datatypes import FLOAT
from protocols.mpi.requests import Request
from testbed.spec.units import UnitError
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.workload_settings import Duration, MessageSizes, Size

_WARM_UP_CALLS: Final = 2
_FLOAT_BYTES: Final = 4

Call: TypeAlias = Callable[[int], Awaitable[object]]
"""A call of a benchmark; its argument is the call's number in the sample."""


def parse_benchmarks(value: object) -> tuple[str, ...]:
    """Parse names of benchmarks, separated by commas. Raises UnitError."""
    names = value if isinstance(value, list | tuple) else str(value).split(",")
    names_by_lower_case = {name.lower(): name for name in BENCHMARKS}
    parsed = []
    for name in names:
        if str(name).strip().lower() not in names_by_lower_case:
            raise UnitError(str(value), f"names of benchmarks: {', '.join(BENCHMARKS)}")
        parsed.append(names_by_lower_case[str(name).strip().lower()])
    return tuple(parsed)


Names: TypeAlias = Annotated[tuple[str, ...], parse_benchmarks]


def _ping_pong(comm: Comm, size: int) -> Call:
    send_buffer, receive_buffer = bytes(size), bytearray(size)

    async def call(_: int) -> None:
        if comm.rank:
            await comm.Recv(receive_buffer, 0)
            await comm.Send(send_buffer, 0)
        else:
            await comm.Send(send_buffer, 1)
            await comm.Recv(receive_buffer, 1)

    return call


def _ping_ping(comm: Comm, size: int) -> Call:
    send_buffer, receive_buffer = bytes(size), bytearray(size)

    async def call(_: int) -> None:
        received = await comm.Irecv(receive_buffer, 1 - comm.rank)
        await comm.Send(send_buffer, 1 - comm.rank)
        await received.Wait()

    return call


def _sendrecv(comm: Comm, size: int) -> Call:
    send_buffer, receive_buffer = bytes(size), bytearray(size)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return lambda _: comm.Sendrecv(send_buffer, right, 0, receive_buffer, left, 0)


def _exchange(comm: Comm, size: int) -> Call:
    send_buffer, buffers = bytes(size), (bytearray(size), bytearray(size))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    async def call(_: int) -> None:
        # With two ranks both neighbours are the same rank; tags distinguish the messages.
        received = [await comm.Irecv(buffers[0], left, 0), await comm.Irecv(buffers[1], right, 1)]
        sent = [await comm.Isend(send_buffer, right, 0), await comm.Isend(send_buffer, left, 1)]
        await Request.Waitall([*received, *sent])

    return call


def _barrier(comm: Comm, _size: int) -> Call:
    return lambda _: comm.Barrier()


def _bcast(comm: Comm, size: int) -> Call:
    data = bytearray(size)
    return lambda number: comm.Bcast(data, number % comm.size)


def _gather(comm: Comm, size: int) -> Call:
    block, all_blocks = bytes(size), bytearray(size * comm.size)
    return lambda number: comm.Gather(block, all_blocks, number % comm.size)


def _scatter(comm: Comm, size: int) -> Call:
    block, all_blocks = bytearray(size), bytes(size * comm.size)
    return lambda number: comm.Scatter(all_blocks, block, number % comm.size)


def _allgather(comm: Comm, size: int) -> Call:
    block, all_blocks = bytes(size), bytearray(size * comm.size)
    return lambda _: comm.Allgather(block, all_blocks)


def _alltoall(comm: Comm, size: int) -> Call:
    send_buffer, receive_buffer = bytes(size * comm.size), bytearray(size * comm.size)
    return lambda _: comm.Alltoall(send_buffer, receive_buffer)


def _gatherv(comm: Comm, size: int) -> Call:
    block, all_blocks = bytes(size), _blocks(comm, size)
    return lambda number: comm.Gatherv(block, all_blocks, number % comm.size)


def _scatterv(comm: Comm, size: int) -> Call:
    block, all_blocks = bytearray(size), _blocks(comm, size)
    return lambda number: comm.Scatterv(all_blocks, block, number % comm.size)


def _allgatherv(comm: Comm, size: int) -> Call:
    block, all_blocks = bytes(size), _blocks(comm, size)
    return lambda _: comm.Allgatherv(block, all_blocks)


def _alltoallv(comm: Comm, size: int) -> Call:
    send_buffer, receive_buffer = _blocks(comm, size), _blocks(comm, size)
    return lambda _: comm.Alltoallv(send_buffer, receive_buffer)


def _blocks(comm: Comm, size: int) -> list[Any]:
    """Return the buffer argument of a vector call, with a block of `size` bytes for each rank."""
    return [bytearray(size * comm.size), [size] * comm.size]


def _reduce(comm: Comm, size: int) -> Call:
    block, result = _floats(size), _floats(size)
    return lambda number: comm.Reduce(block, result, root=number % comm.size)


def _allreduce(comm: Comm, size: int) -> Call:
    block, result = _floats(size), _floats(size)
    return lambda _: comm.Allreduce(block, result)


def _reduce_scatter(comm: Comm, size: int) -> Call:
    items = size // _FLOAT_BYTES
    counts = [items // comm.size + (rank < items % comm.size) for rank in range(comm.size)]
    block, result = _floats(size), _floats(counts[comm.rank] * _FLOAT_BYTES)
    return lambda _: comm.Reduce_scatter(block, result, counts)


def _floats(size: int) -> list[Any]:
    """Return the buffer argument of a reduction: `size` bytes, rounded down to a multiple of an item."""
    return [bytearray(size // _FLOAT_BYTES * _FLOAT_BYTES), FLOAT]


BENCHMARKS: Final[Mapping[str, Callable[[Comm, int], Call]]] = {
    "PingPong": _ping_pong, "PingPing": _ping_ping, "Sendrecv": _sendrecv, "Exchange": _exchange, "Barrier": _barrier,
    "Bcast": _bcast, "Gather": _gather, "Gatherv": _gatherv, "Scatter": _scatter, "Scatterv": _scatterv,
    "Allgather": _allgather, "Allgatherv": _allgatherv, "Alltoall": _alltoall, "Alltoallv": _alltoallv,
    "Reduce": _reduce, "Allreduce": _allreduce, "Reduce_scatter": _reduce_scatter,
}  # fmt: skip
_PAIR_BENCHMARKS: Final = frozenset(("PingPong", "PingPing"))
_REDUCTIONS: Final = frozenset(("Reduce", "Allreduce", "Reduce_scatter"))
_MESSAGES_PER_CALL: Final = {"PingPong": 1, "PingPing": 1, "Sendrecv": 2, "Exchange": 4}
"""Number of messages of a call that count for the bandwidth; other benchmarks have no bandwidth."""


class Imb(Workload):
    """Times of transfers and collective calls as Intel's MPI Benchmarks define them, by number of ranks and message size.

    benchmarks: names of benchmarks. count: maximum number of calls of a sample. overall: maximum bytes of a sample. most:
    maximum time of a sample. least_ranks: minimum number of ranks.
    """

    supports_restarts = False

    benchmarks: Names = tuple(BENCHMARKS)
    sizes: MessageSizes = (0, 4, 64, 1024, 4096, 16384, 65536)
    count: int = 1000
    overall: Size = 40 << 20
    most: Duration = 1_000_000_000
    least_ranks: int = 2

    def __post_init__(self) -> None:
        if self.count < 1 or self.least_ranks < 1:
            raise ValueError("count and least_ranks: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        if not _REDUCTIONS.isdisjoint(self.benchmarks):
            # This imports NumPy, which takes longer than a sample.
            await comm.Allreduce(_floats(_FLOAT_BYTES), _floats(_FLOAT_BYTES))
        for ranks in _rank_counts(comm.size, self.least_ranks):
            group = await comm.Split(0 if comm.rank < ranks else UNDEFINED, comm.rank)
            for name in self.benchmarks:
                if group is None or (name in _PAIR_BENCHMARKS and ranks != 2):
                    continue
                for size in (0,) if name == "Barrier" else self.sizes:
                    if size or name not in _REDUCTIONS:
                        await self._sample(group, node, name, size)
            if group is not None:
                group.Free()
            await comm.Barrier()

    async def _sample(self, comm: Comm, node: Node, name: str, size: int) -> None:
        call = BENCHMARKS[name](comm, size)
        warm_up_time = await _time_calls(comm, node, call, _WARM_UP_CALLS)
        limit = min(
            self.count, self.overall // size if size else self.count, _WARM_UP_CALLS * self.most // max(1, warm_up_time)
        )
        count = max(1, min(await comm.allgather(limit)))
        gathered = await comm.gather(await _time_calls(comm, node, call, count) / count)
        if gathered is None:
            return
        divisor = 2 if name == "PingPong" else 1
        times = [time / divisor for time in gathered]
        messages = _MESSAGES_PER_CALL.get(name)
        rate = {} if messages is None else {"bandwidth_bit_s": 8e9 * messages * size / max(1.0, max(times))}
        node.row(
            benchmark=name, ranks=comm.size, size_bytes=size, count=count, min_ns=round(min(times)),
            avg_ns=round(sum(times) / len(times)), max_ns=round(max(times)), **rate,
        )  # fmt: skip


async def _time_calls(comm: Comm, node: Node, call: Call, count: int) -> int:
    """Make `count` calls after a barrier; return the nanoseconds."""
    await comm.Barrier()
    start_time = node.now()
    for number in range(count):
        await call(number)
    return node.now() - start_time


def _rank_counts(ranks: int, minimum: int) -> list[int]:
    """Return the numbers of ranks to measure: the powers of two from `minimum` on, and the number of all ranks."""
    return sorted({step for step in (1 << power for power in range(ranks.bit_length())) if step >= minimum} | {ranks})

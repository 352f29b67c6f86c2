"""Random collective calls in random communicators, each compared with NumPy in one process."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Any, Final

import numpy as np

from protocols import mpi
from protocols.mpi import Comm, Op
from testbed.workloads.form import Node

Array = np.ndarray[Any, Any]

_UFUNCS: Final = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "BAND": np.bitwise_and, "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}  # fmt: skip
_COUNTS: Final = (0, 1, 3, 40, 700, 3_000)


class _Case:
    """Arguments of a call, equal on all ranks. rows: each rank's items. root, op: used if the call has them."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.size = size
        self.root = rng.randrange(size)
        self.name = rng.choice(list(_UFUNCS))
        self.dtype = rng.choice("ilbd" if self.name[0] != "B" else "ilb")
        self.count = rng.choice(_COUNTS)
        self.rows = np.random.default_rng(rng.randrange(1 << 30)).integers(1, 4, (size, size * self.count))
        self.rows = self.rows.astype(self.dtype)
        self.counts = [rng.randrange(6) for _ in range(size)]

    @property
    def op(self) -> Op:
        operation: Op = getattr(mpi, self.name)
        return operation

    def reduced(self, rows: Array) -> list[Array]:
        """Return the reductions of the first rows, of the first two, and so on."""
        return list(accumulate(rows, lambda first, second: _UFUNCS[self.name](first, second).astype(self.dtype)))

    def empty(self, *shape: int) -> Array:
        return np.zeros(shape, self.dtype)


async def _bcast(comm: Comm, case: _Case) -> None:
    buffer = case.rows[comm.rank].copy()
    await comm.Bcast(buffer, case.root)
    assert np.array_equal(buffer, case.rows[case.root])


async def _gather(comm: Comm, case: _Case) -> None:
    gathered = case.empty(*case.rows.shape) if comm.rank == case.root else None
    await comm.Gather(case.rows[comm.rank], gathered, case.root)
    assert gathered is None or np.array_equal(gathered, case.rows)


async def _scatter(comm: Comm, case: _Case) -> None:
    scattered = case.empty(case.rows.shape[1])
    await comm.Scatter(case.rows if comm.rank == case.root else None, scattered, case.root)
    assert np.array_equal(scattered, case.rows[comm.rank])


async def _allgather(comm: Comm, case: _Case) -> None:
    gathered = case.empty(*case.rows.shape)
    await comm.Allgather(case.rows[comm.rank], gathered)
    assert np.array_equal(gathered, case.rows)


async def _alltoall(comm: Comm, case: _Case) -> None:
    cube, exchanged = case.rows.reshape(case.size, case.size, case.count), case.empty(case.size, case.count)
    await comm.Alltoall(cube[comm.rank].copy(), exchanged)
    assert np.array_equal(exchanged, cube[:, comm.rank])


async def _vectors(comm: Comm, case: _Case) -> None:
    own_block, all_blocks = np.full(case.counts[comm.rank], comm.rank, case.dtype), case.empty(sum(case.counts))
    await comm.Allgatherv(own_block, [all_blocks, case.counts])
    assert np.array_equal(all_blocks, np.repeat(np.arange(case.size), case.counts))
    scattered = case.empty(case.counts[comm.rank])
    await comm.Scatterv([all_blocks, case.counts] if comm.rank == case.root else None, scattered, case.root)
    assert np.array_equal(scattered, own_block)


async def _reductions(comm: Comm, case: _Case) -> None:
    own_row, result, prefixes = case.rows[comm.rank], case.empty(case.rows.shape[1]), case.reduced(case.rows)
    await comm.Reduce(own_row, result if comm.rank == case.root else None, case.op, case.root)
    assert comm.rank != case.root or np.array_equal(result, prefixes[-1])
    await comm.Allreduce(own_row, result, case.op)
    assert np.array_equal(result, prefixes[-1])
    await comm.Scan(own_row, result, case.op)
    assert np.array_equal(result, prefixes[comm.rank])
    part = case.empty(case.count)
    await comm.Reduce_scatter_block(own_row, part, case.op)
    assert np.array_equal(part, prefixes[-1][comm.rank * case.count : (comm.rank + 1) * case.count])


async def _objects(comm: Comm, case: _Case) -> None:
    own_object = (comm.rank, "x" * case.count)
    all_objects = [(rank, "x" * case.count) for rank in range(case.size)]
    assert await comm.allgather(own_object) == all_objects
    assert await comm.bcast(own_object if comm.rank == case.root else None, case.root) == all_objects[case.root]
    assert await comm.gather(own_object, case.root) == (all_objects if comm.rank == case.root else None)


async def _nonblocking(comm: Comm, case: _Case) -> None:
    gathered, summed = case.empty(*case.rows.shape), case.empty(case.rows.shape[1])
    requests = [
        await comm.Iallgather(case.rows[comm.rank], gathered),
        await comm.Iallreduce(case.rows[comm.rank], summed, case.op),
        await comm.Ibarrier(),
    ]
    await mpi.Request.Waitall(requests)
    assert np.array_equal(gathered, case.rows)
    assert np.array_equal(summed, case.reduced(case.rows)[-1])


_CALLS: Final[tuple[Callable[[Comm, _Case], Awaitable[None]], ...]] = (
    _bcast, _gather, _scatter, _allgather, _alltoall, _vectors, _reductions, _objects, _nonblocking,
)  # fmt: skip


async def compare(comm: Comm, node: Node, *, cases: int = 20) -> int:  # workload
    """Make random collective calls; return the number in which this rank took part. All ranks draw the same calls."""
    rng = random.Random(node.seed)
    calls_made = 0
    for _ in range(cases):
        colors = [rng.randrange(2) for _ in range(comm.size)]
        keys = [rng.randrange(9) for _ in range(comm.size)]
        part = comm if rng.random() < 0.5 else await comm.Split(colors[comm.rank], keys[comm.rank])
        assert part is not None
        call, seed = rng.choice(_CALLS), rng.randrange(1 << 30)
        await call(part, _Case(random.Random(seed), part.size))
        calls_made += 1
        if part is not comm:
            part.Free()
    return calls_made

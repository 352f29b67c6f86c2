"""Random collective calls in random communicators, each compared with NumPy on one process."""

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
    """A call that all ranks make alike. rows: each rank's items. root, op: as far as the call has them."""

    def __init__(self, chance: random.Random, size: int) -> None:
        self.size = size
        self.root = chance.randrange(size)
        self.name = chance.choice(list(_UFUNCS))
        self.dtype = chance.choice("ilbd" if self.name[0] != "B" else "ilb")
        self.count = chance.choice(_COUNTS)
        self.rows = np.random.default_rng(chance.randrange(1 << 30)).integers(1, 4, (size, size * self.count))
        self.rows = self.rows.astype(self.dtype)
        self.counts = [chance.randrange(6) for _ in range(size)]

    @property
    def op(self) -> Op:
        operation: Op = getattr(mpi, self.name)
        return operation

    def reduced(self, rows: Array) -> list[Array]:
        """Return the reductions of the first rows, of the first two, and so on."""
        return list(accumulate(rows, lambda left, right: _UFUNCS[self.name](left, right).astype(self.dtype)))

    def empty(self, *shape: int) -> Array:
        return np.zeros(shape, self.dtype)


async def _bcast(comm: Comm, case: _Case) -> None:
    buffer = case.rows[comm.rank].copy()
    await comm.Bcast(buffer, case.root)
    assert np.array_equal(buffer, case.rows[case.root])


async def _gather(comm: Comm, case: _Case) -> None:
    out = case.empty(*case.rows.shape) if comm.rank == case.root else None
    await comm.Gather(case.rows[comm.rank], out, case.root)
    assert out is None or np.array_equal(out, case.rows)


async def _scatter(comm: Comm, case: _Case) -> None:
    out = case.empty(case.rows.shape[1])
    await comm.Scatter(case.rows if comm.rank == case.root else None, out, case.root)
    assert np.array_equal(out, case.rows[comm.rank])


async def _allgather(comm: Comm, case: _Case) -> None:
    out = case.empty(*case.rows.shape)
    await comm.Allgather(case.rows[comm.rank], out)
    assert np.array_equal(out, case.rows)


async def _alltoall(comm: Comm, case: _Case) -> None:
    cube, out = case.rows.reshape(case.size, case.size, case.count), case.empty(case.size, case.count)
    await comm.Alltoall(cube[comm.rank].copy(), out)
    assert np.array_equal(out, cube[:, comm.rank])


async def _vectors(comm: Comm, case: _Case) -> None:
    own, whole = np.full(case.counts[comm.rank], comm.rank, case.dtype), case.empty(sum(case.counts))
    await comm.Allgatherv(own, [whole, case.counts])
    assert np.array_equal(whole, np.repeat(np.arange(case.size), case.counts))
    back = case.empty(case.counts[comm.rank])
    await comm.Scatterv([whole, case.counts] if comm.rank == case.root else None, back, case.root)
    assert np.array_equal(back, own)


async def _reductions(comm: Comm, case: _Case) -> None:
    own, out, prefixes = case.rows[comm.rank], case.empty(case.rows.shape[1]), case.reduced(case.rows)
    await comm.Reduce(own, out if comm.rank == case.root else None, case.op, case.root)
    assert comm.rank != case.root or np.array_equal(out, prefixes[-1])
    await comm.Allreduce(own, out, case.op)
    assert np.array_equal(out, prefixes[-1])
    await comm.Scan(own, out, case.op)
    assert np.array_equal(out, prefixes[comm.rank])
    part = case.empty(case.count)
    await comm.Reduce_scatter_block(own, part, case.op)
    assert np.array_equal(part, prefixes[-1][comm.rank * case.count : (comm.rank + 1) * case.count])


async def _objects(comm: Comm, case: _Case) -> None:
    reported = (comm.rank, "x" * case.count)
    everybody = [(rank, "x" * case.count) for rank in range(case.size)]
    assert await comm.allgather(reported) == everybody
    assert await comm.bcast(reported if comm.rank == case.root else None, case.root) == everybody[case.root]
    assert await comm.gather(reported, case.root) == (everybody if comm.rank == case.root else None)


async def _at_once(comm: Comm, case: _Case) -> None:
    out, total = case.empty(*case.rows.shape), case.empty(case.rows.shape[1])
    requests = [
        await comm.Iallgather(case.rows[comm.rank], out),
        await comm.Iallreduce(case.rows[comm.rank], total, case.op),
        await comm.Ibarrier(),
    ]
    await mpi.Request.Waitall(requests)
    assert np.array_equal(out, case.rows)
    assert np.array_equal(total, case.reduced(case.rows)[-1])


_CALLS: Final[tuple[Callable[[Comm, _Case], Awaitable[None]], ...]] = (
    _bcast, _gather, _scatter, _allgather, _alltoall, _vectors, _reductions, _objects, _at_once,
)  # fmt: skip


async def compare(comm: Comm, node: Node, *, cases: int = 20) -> int:  # workload
    """Make random collective calls; return how many this rank took part in. All ranks draw the same ones."""
    chance = random.Random(node.seed)
    made = 0
    for _ in range(cases):
        colors = [chance.randrange(2) for _ in range(comm.size)]
        keys = [chance.randrange(9) for _ in range(comm.size)]
        part = comm if chance.random() < 0.5 else await comm.Split(colors[comm.rank], keys[comm.rank])
        assert part is not None
        call, seed = chance.choice(_CALLS), chance.randrange(1 << 30)
        await call(part, _Case(random.Random(seed), part.size))
        made += 1
        if part is not comm:
            part.Free()
    return made

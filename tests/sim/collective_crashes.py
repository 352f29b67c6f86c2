"""All collective calls, and runs in which a rank crashes during one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import testbed
from protocols.mpi import BYTE, SUM, Comm
from protocols.mpi.mpi_errors import MPIError
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Crash
from testbed.workloads.form import Node

Call = Callable[[Comm, int], Awaitable[object]]
"""A collective call of (communicator, message size in bytes, a multiple of 8)."""

MILLISECOND: Final = 1_000_000
_CRASH_TIME: Final = 200 * MILLISECOND
"""Time of the crash in ns: by then, the other ranks wait for the victim in the last call."""


def _ints(size: int) -> list[Any]:
    return [bytearray(size), "l"]


def _nonblocking(begin: Call) -> Call:
    """Return a call that starts a non-blocking operation and waits for its request."""

    async def call(comm: Comm, size: int) -> None:
        request: Any = await begin(comm, size)
        await request.Wait()

    return call


def _persistent(create: Call) -> Call:
    """Return a call that creates, starts, completes and frees a persistent request."""

    async def call(comm: Comm, size: int) -> None:
        request: Any = await create(comm, size)
        await request.Start()
        await request.Wait()
        request.Free()

    return call


async def _alltoallw(comm: Comm, size: int) -> None:
    blocks = ([size] * comm.size, [size * rank for rank in range(comm.size)]), [BYTE] * comm.size
    await comm.Alltoallw([bytes(size * comm.size), *blocks], [bytearray(size * comm.size), *blocks])


async def _neighbor_alltoall(comm: Comm, size: int) -> None:
    ring = await comm.Create_cart([comm.size], True)
    assert ring is not None
    await ring.Neighbor_alltoall(bytes(2 * size), bytearray(2 * size))
    ring.Free()


async def _create_and_free(work: Awaitable[Comm | None]) -> None:
    """Create a communicator and free it."""
    created = await work
    assert created is not None
    created.Free()


CALLS: Final[dict[str, Call]] = {
    "Barrier": lambda comm, _: comm.Barrier(),
    "Bcast": lambda comm, size: comm.Bcast(bytearray(size)),
    "Gather": lambda comm, size: comm.Gather(bytes(size), bytearray(size * comm.size)),
    "Gatherv": lambda comm, size: comm.Gatherv(bytes(size), bytearray(size * comm.size)),
    "Scatter": lambda comm, size: comm.Scatter(bytes(size * comm.size), bytearray(size)),
    "Scatterv": lambda comm, size: comm.Scatterv(bytes(size * comm.size), bytearray(size)),
    "Allgather": lambda comm, size: comm.Allgather(bytes(size), bytearray(size * comm.size)),
    "Allgatherv": lambda comm, size: comm.Allgatherv(bytes(size), bytearray(size * comm.size)),
    "Alltoall": lambda comm, size: comm.Alltoall(bytes(size * comm.size), bytearray(size * comm.size)),
    "Alltoallv": lambda comm, size: comm.Alltoallv(bytes(size * comm.size), bytearray(size * comm.size)),
    "Alltoallw": _alltoallw,
    "Reduce": lambda comm, size: comm.Reduce(_ints(size), _ints(size)),
    "Allreduce": lambda comm, size: comm.Allreduce(_ints(size), _ints(size)),
    "Reduce_scatter_block": lambda comm, size: comm.Reduce_scatter_block(_ints(size * comm.size), _ints(size)),
    "Reduce_scatter": lambda comm, size: comm.Reduce_scatter(_ints(size * comm.size), _ints(size)),
    "Scan": lambda comm, size: comm.Scan(_ints(size), _ints(size)),
    "Exscan": lambda comm, size: comm.Exscan(_ints(size), _ints(size)),
    "bcast": lambda comm, size: comm.bcast(bytes(size)),
    "gather": lambda comm, size: comm.gather(bytes(size)),
    "scatter": lambda comm, size: comm.scatter([bytes(size)] * comm.size),
    "allgather": lambda comm, size: comm.allgather(bytes(size)),
    "alltoall": lambda comm, size: comm.alltoall([bytes(size)] * comm.size),
    "reduce": lambda comm, size: comm.reduce([size], SUM),
    "allreduce": lambda comm, size: comm.allreduce([size], SUM),
    "scan": lambda comm, size: comm.scan([size], SUM),
    "exscan": lambda comm, size: comm.exscan([size], SUM),
    "Dup": lambda comm, _: comm.Dup(),
    "Split": lambda comm, _: comm.Split(0),
}
COMPOSED: Final[dict[str, Call]] = {
    "Create": lambda comm, _: _create_and_free(comm.Create(comm.Get_group())),
    "Create_group": lambda comm, _: _create_and_free(comm.Create_group(comm.Get_group())),
    "Create_dist_graph": lambda comm, _: _create_and_free(comm.Create_dist_graph([comm.rank], [1], [0])),
    "Neighbor_alltoall": _neighbor_alltoall,
    "Ibarrier": _nonblocking(lambda comm, _: comm.Ibarrier()),
    "Iallgather": _nonblocking(lambda comm, size: comm.Iallgather(bytes(size), bytearray(size * comm.size))),
    "Ireduce": _nonblocking(lambda comm, size: comm.Ireduce(_ints(size), _ints(size))),
    "Bcast_init": _persistent(lambda comm, size: comm.Bcast_init(bytearray(size))),
    "Alltoall_init": _persistent(
        lambda comm, size: comm.Alltoall_init(bytes(size * comm.size), bytearray(size * comm.size))
    ),
}
"""Calls that are composed of those in `CALLS`."""


def survivors_errors(
    folder: Path, call: Call, size: int, victim: int, cluster: Cluster, rounds: int, **options: Any
) -> dict[str, tuple[int, str, int]]:
    """Let all ranks repeat a call until it fails. The victim crashes after `rounds` calls.
    Returns each survivor's error class, message, and time since the crash in ns."""

    async def program(comm: Comm, node: Node) -> tuple[int, str, int]:
        start_time, count = node.now(), 0
        while True:
            if comm.rank == victim and count == rounds:
                await node.sleep(1_000 * MILLISECOND)
            try:
                await call(comm, size)
            except MPIError as error:
                return error.Get_error_class(), str(error), node.now() - start_time - _CRASH_TIME
            count += 1
            await node.sleep(MILLISECOND)

    crash = Crash(on=f"n{victim + 1}", at=f"{_CRASH_TIME}ns")
    scenario = Scenario(name="crash", faults=(crash,))
    result = testbed.run(cluster, program, scenario=scenario, output=folder / "run", timeout=20.0, **options)
    return result.results

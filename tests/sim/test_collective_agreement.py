"""Mismatched collective calls are reported with the ranks, their calls and source lines."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import testbed
from protocols.mpi import INT, MAX, SUM, UNDEFINED, Comm, Prequest
from testbed import Cluster
from testbed.errors import TestbedError
from testbed.workloads.form import Node

STAR = Cluster.star(3)
Call = Callable[[Comm], Awaitable[object]]


def ints(size: int) -> list[Any]:
    return [bytearray(4 * size), INT]


def floats(size: int) -> list[Any]:
    return [bytearray(4 * size), "f"]


def run_checked(folder: Path, *calls: Call) -> dict[str, Any]:
    """Let each rank make its call after a common barrier; return the check of collective calls."""

    async def program(comm: Comm, _: Node) -> None:
        await comm.Barrier()
        await calls[comm.rank](comm)

    with suppress(TestbedError):  # the run stalls, or a rank gets an error; the checks do not depend on it
        testbed.run(STAR, program, mode="sim", check=True, output=folder / "run", timeout=5.0)
    checks = json.loads((folder / "run" / "checks.json").read_text())["checks"]
    (check,) = [check for check in checks if check["check"] == "collective calls"]
    return dict(check)


MUTANTS: dict[str, tuple[Call, Call, str]] = {
    "another root": (
        lambda comm: comm.Bcast(bytearray(8), 0),
        lambda comm: comm.Bcast(bytearray(8), 1),
        "roots differ: n1 calls Bcast(root 0, 8 bytes)",
    ),
    "another call": (
        lambda comm: comm.Barrier(),
        lambda comm: comm.allgather(1),
        "calls differ: n1 calls Barrier()",
    ),
    "an object's call for a buffer's": (
        lambda comm: comm.Bcast(bytearray(8)),
        lambda comm: comm.bcast(None),
        "calls differ: n1 calls Bcast(root 0, 8 bytes)",
    ),
    "another size": (
        lambda comm: comm.Allreduce(ints(4), ints(4)),
        lambda comm: comm.Allreduce(ints(5), ints(5)),
        "sizes differ: n1 calls Allreduce(MPI_SUM, 16 bytes of MPI_INT)",
    ),
    "another operation": (
        lambda comm: comm.Reduce(ints(4), ints(4), SUM, 2),
        lambda comm: comm.Reduce(ints(4), ints(4), MAX, 2),
        "operations differ: n1 calls Reduce(root 2, MPI_SUM, 16 bytes of MPI_INT)",
    ),
    "another operation on objects": (
        lambda comm: comm.allreduce(1, SUM),
        lambda comm: comm.allreduce(1, MAX),
        "operations differ: n1 calls allreduce(MPI_SUM)",
    ),
    "another datatype": (
        lambda comm: comm.Scan(ints(4), ints(4)),
        lambda comm: comm.Scan(floats(4), floats(4)),
        "datatypes differ: n1 calls Scan(MPI_SUM, 16 bytes of MPI_INT)",
    ),
    "another block for one rank": (
        lambda comm: comm.Alltoallv([bytes(6), [1, 2, 3]], [bytearray(6), [1 + comm.rank] * 3]),
        lambda comm: comm.Alltoallv([bytes(7), [2, 2, 3]], [bytearray(6), [1 + comm.rank] * 3]),
        "rank 1 sends 2 bytes to rank 0, which expects 1",
    ),
    "another block for the root": (
        lambda comm: comm.Gatherv(bytes(4), [bytearray(12), [4] * 3]),
        lambda comm: comm.Gatherv(bytes(3)),
        "rank 1 sends 3 bytes to rank 0, which expects 4",
    ),
    "another block from the root": (
        lambda comm: comm.Scatterv([bytes(12), [4] * 3], bytearray(4)),
        lambda comm: comm.Scatterv(None, bytearray(5)),
        "rank 0 sends 4 bytes to rank 1, which expects 5",
    ),
    "another block at all ranks": (
        lambda comm: comm.Allgatherv(bytes(4), [bytearray(12), [4] * 3]),
        lambda comm: comm.Allgatherv(bytes(4), [bytearray(13), [4, 4, 5]]),
        "rank 2 sends 4 bytes to rank 1, which expects 5",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mismatched_call_is_reported_with_the_source_lines_of_both_ranks(tmp_path: Path, name: str) -> None:
    matching_call, mismatched_call, sentence = MUTANTS[name]
    passed_check = run_checked(tmp_path / "good", matching_call, matching_call, matching_call)
    assert (passed_check["checked"], passed_check["failed"]) == (2, 0)
    failed_check = run_checked(tmp_path / "bad", matching_call, mismatched_call, matching_call)
    assert failed_check["failed"] == 1
    (violation,) = failed_check["violations"]
    assert sentence in violation
    assert violation.startswith("collective call 2 of ranks [0, 1, 2] (context 1), ")
    assert violation.count(f" at {__file__}:") == 2, "a rank's line is missing"
    assert "n2 calls" in violation


async def idle(comm: Comm) -> None:
    """Make no call."""


def test_a_missing_call_of_a_rank_is_reported_when_the_run_stalls(tmp_path: Path) -> None:
    check = run_checked(tmp_path, Comm.Barrier, idle, Comm.Barrier)
    (violation,) = check["violations"]
    assert violation.startswith(
        "collective call 2 of ranks [0, 1, 2] (context 1), not made by n2: n1 calls Barrier() at "
    )


async def call_in_communicators(comm: Comm) -> None:
    """Make calls in a communicator of some ranks, and in two copies, the second of which reuses the first one's context."""
    subgroup = await comm.Split(0 if comm.rank < 2 else UNDEFINED)
    if subgroup is not None:
        await subgroup.Bcast(bytearray(4), 1)
    for size in (4, 8):
        copy = await comm.Dup()
        await copy.Bcast(bytearray(size))
        copy.Free()


def test_calls_in_different_communicators_are_checked_separately(tmp_path: Path) -> None:
    check = run_checked(tmp_path, call_in_communicators, call_in_communicators, call_in_communicators)
    assert check["failed"] == 0
    assert check["checked"] == 7  # the first Barrier, Split, two Dup, three Bcast


async def broadcast_with_own_root(comm: Comm) -> None:
    """Broadcast in a new communicator, with a different root at each rank."""
    subgroup = await comm.Split(0)
    assert subgroup is not None
    await subgroup.Bcast(bytearray(4), comm.rank)


def test_a_mismatch_is_reported_with_its_communicators_ranks_and_context(tmp_path: Path) -> None:
    (violation,) = run_checked(tmp_path, broadcast_with_own_root, broadcast_with_own_root, broadcast_with_own_root)[
        "violations"
    ]
    assert violation.startswith(
        "collective call 1 of ranks [0, 1, 2] (context 5), roots differ: n1 calls Bcast(root 0, 4 bytes)"
    )


@pytest.mark.parametrize("protocol", ["emp", "openmx"])
def test_persistent_calls_that_ranks_start_in_different_orders_agree(protocol: str) -> None:
    async def program(comm: Comm, _: Node) -> int:
        gathered = bytearray(comm.size * 2_000)
        requests = [
            await comm.Allgather_init(bytes([comm.rank]) * 2_000, gathered),
            await comm.Barrier_init(),
            await comm.Bcast_init(bytearray(8), 2),
        ]
        for _ in range(3):
            await Prequest.Startall(requests[comm.rank :] + requests[: comm.rank])
            await Prequest.Waitall(requests)
        return len(set(gathered))

    cluster = Cluster.star(3, loss="2%")
    result = testbed.run(cluster, program, protocol=protocol, mode="sim", seed=4, check=True)
    assert result.checks is not None
    assert result.checks.passed
    assert set(result.results.values()) == {3}

"""Schedules of NAS kernels: their messages equal those of the kernels in sender, receiver, size and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocols.mpi import Comm
from testbed.workloads.nas.schedules import SCHEDULES, Messages
from tests.unit.protocols.host_programs import Program
from tests.unit.protocols.nicless_endpoints import LibraryRanks
from tests.unit.workloads.nas_kernels import KERNELS

HEAD = 19  # bytes of a frame before its message


def messages_of_ranks(size: int, program: Callable[[Comm], Program[Any]]) -> list[list[tuple[int, int]]]:
    """Run the ranks; return each rank's messages in order, as (receiver, size)."""
    ranks = LibraryRanks(size)
    messages: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    deliver = ranks.wires.deliver

    def record(frame: bytes) -> None:
        messages[frame[11] - 1].append((frame[5] - 1, len(frame) - HEAD))
        deliver(frame)

    ranks.wires.deliver = record  # type: ignore[method-assign]
    ranks.run(*[program] * size)
    assert ranks.is_idle()
    return messages


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("name", KERNELS)
def test_a_schedule_sends_the_frames_of_the_kernel(name: str, size: int) -> None:
    make_solver, problem = KERNELS[name]
    operations = [0.0]

    async def compute(count: float) -> None:
        operations[0] += count

    async def prepare(comm: Comm) -> Any:
        solver = make_solver(comm, problem)
        await solver.prepare()
        return solver

    async def solve(comm: Comm) -> None:
        await (await prepare(comm)).solve()

    async def schedule(comm: Comm) -> None:
        await SCHEDULES[name](Messages(comm), problem, compute)

    before = [len(rank) for rank in messages_of_ranks(size, prepare)]
    messages = [rank[first:] for rank, first in zip(messages_of_ranks(size, solve), before, strict=True)]
    assert all(messages)
    assert messages_of_ranks(size, schedule) == messages
    assert operations[0] == pytest.approx(problem.operations())

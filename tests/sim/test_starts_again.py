"""A program knows its number of starts, and does not wait at a barrier that the others have passed."""

from __future__ import annotations

from typing import Literal

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.runtime.nodes.node_run import ProgramError
from testbed.spec.fault_models import Crash, Fault, Reset, Restart
from testbed.workloads.form import Comm, Node

MILLISECOND = 1_000_000
Mode = Literal["sim", "live"]


async def wait(_comm: Comm, node: Node, *, time: int = 1_000 * MILLISECOND) -> int:
    await node.sleep(time)
    return node.starts


async def met(comm: Comm, node: Node) -> None:
    await node.barrier()
    await node.sleep(1_000 * MILLISECOND)
    if comm.rank == 0:
        await comm.recv(source=2)  # it waits for the restarted node


def play(mode: Mode, workload: object, *faults: Fault) -> testbed.RunResult:
    scenario = Scenario(name="storm", faults=faults)
    return testbed.run(Cluster.star(3), workload, mode=mode, scenario=scenario, timeout=30, check=False)  # type: ignore[arg-type]


def knows_how_often_it_was_started(mode: Mode) -> None:
    restarts = Restart(on="n2", at="200ms"), Reset(on="n2", at="500ms"), Crash(on="n3", at="300ms", for_="100ms")
    assert play(mode, wait, *restarts).results == {"n1": 1, "n2": 3, "n3": 2}


def ends_at_the_barrier(mode: Mode) -> None:
    with pytest.raises(ProgramError, match=r"n3: Traceback(.|\n)*n3 was restarted and called a barrier"):
        play(mode, met, Restart(on="n3", at="300ms"))


def test_a_program_knows_how_often_it_was_started() -> None:
    knows_how_often_it_was_started("sim")


def test_a_restarted_rank_at_a_barrier_ends_the_run_with_an_error_of_one_line() -> None:
    ends_at_the_barrier("sim")

"""Restarted programs: their number of starts, and barriers that other programs have passed."""

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


async def sleep_then_return_starts(_comm: Comm, node: Node, *, time: int = 1_000 * MILLISECOND) -> int:
    await node.sleep(time)
    return node.starts


async def meet_then_wait(comm: Comm, node: Node) -> None:
    await node.barrier()
    await node.sleep(1_000 * MILLISECOND)
    if comm.rank == 0:
        await comm.recv(source=2)  # until the restarted node has failed


def play(mode: Mode, workload: object, *faults: Fault) -> testbed.RunResult:
    scenario = Scenario(name="storm", faults=faults)
    return testbed.run(Cluster.star(3), workload, mode=mode, scenario=scenario, timeout=30, check=False)  # type: ignore[arg-type]


def check_number_of_starts(mode: Mode) -> None:
    restarts = Restart(on="n2", at="200ms"), Reset(on="n2", at="500ms"), Crash(on="n3", at="300ms", for_="100ms")
    assert play(mode, sleep_then_return_starts, *restarts).results == {"n1": 1, "n2": 3, "n3": 2}


def check_restart_at_barrier(mode: Mode) -> None:
    with pytest.raises(ProgramError, match=r"n3: Traceback(.|\n)*n3 was restarted and called a barrier"):
        play(mode, meet_then_wait, Restart(on="n3", at="300ms"))


def test_a_program_has_its_number_of_starts() -> None:
    check_number_of_starts("sim")


def test_a_restarted_rank_that_calls_a_barrier_is_an_error() -> None:
    check_restart_at_barrier("sim")

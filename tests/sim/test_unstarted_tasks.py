"""Tasks that have not taken their first step when the run ends."""

from __future__ import annotations

import gc
import warnings

import pytest

import testbed
from testbed import Cluster
from testbed.runtime.nodes.node_run import ProgramError
from testbed.workloads.form import Comm, Node, Workload


class FailsAfterSpawn(Workload):
    """A program that starts a task and fails in the same step."""

    async def rank(self, comm: Comm, node: Node) -> None:
        async def helper() -> None:
            await comm.Barrier()

        node.spawn(helper(), "a helper")
        raise RuntimeError("ended by itself")


def test_a_task_that_never_ran_is_closed_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ProgramError, match="ended by itself"):
            testbed.run(Cluster.star(2), FailsAfterSpawn(), mode="sim", protocol="emp", timeout=60)
        gc.collect()

"""Connection set-up of MPI ranks over VIA before the program starts: time-outs, rejections and crashed peers."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.controller.runs.run_options import Mode
from testbed.errors import TestbedError
from testbed.workloads.form import Comm, Node

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

MODES = pytest.mark.parametrize("mode", ["sim", "live"])


async def never_started(comm: Comm, node: Node) -> None:
    raise AssertionError(f"the program of rank {comm.rank} on {node.name} has started")


def connection_error(cluster: Cluster, mode: Mode, scenario: Scenario | None = None, **settings: int) -> str:
    """Return the error of a run whose ranks cannot be connected."""
    with pytest.raises(TestbedError) as caught:
        testbed.run(
            cluster, never_started, protocol="via", mode=mode, firmware={"connect_all": 1, **settings}, timeout=20,
            scenario=scenario,
        )  # fmt: skip
    return str(caught.value)


@MODES
def test_unreachable_ranks_fail_after_the_time_out(mode: Mode) -> None:
    error = connection_error(Cluster.star(2, loss="100%"), mode, connect_timeout=50_000_000)
    assert "the connections before the program have failed: rank" in error
    assert "cannot be connected: connect failed (VIP_TIMEOUT)" in error
    assert "Traceback" not in error


@MODES
def test_a_rank_without_free_slots_rejects_connections_and_the_error_names_the_setting(mode: Mode) -> None:
    error = connection_error(Cluster.star(5), mode, slots=40, depth=8)
    assert "cannot be connected" in error
    assert "set more with --firmware slots=..." in error
    assert "Traceback" not in error


@MODES
@pytest.mark.parametrize("time", ["0", "12ms"])
def test_a_rank_that_crashes_during_connection_set_up_ends_the_run(mode: Mode, time: str) -> None:
    """Request and reply take 10 ms; the first message follows."""
    crash = Scenario.from_toml(f'[[fault]]\nkind = "crash"\non = "n2"\nat = "{time}"\n')
    error = connection_error(Cluster.star(2, delay="5ms"), mode, crash, connect_timeout=100_000_000)
    assert "n1: the connections before the program have failed: rank 1 cannot be connected" in error

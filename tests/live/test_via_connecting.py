"""The connections of ranks over VIA, made before the program: time-outs, refusals, peers that die, in namespaces and
simulated."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.controller.runs.run_options import Mode
from testbed.errors import TestbedError
from testbed.workloads.form import Comm, Node

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

MODES = pytest.mark.parametrize("mode", ["sim", "live"])


async def never_begins(comm: Comm, node: Node) -> None:
    raise AssertionError(f"the program of rank {comm.rank} on {node.name} has begun")


def failure_of(cluster: Cluster, mode: Mode, scenario: Scenario | None = None, **settings: int) -> str:
    """The error of a run whose ranks cannot be connected."""
    with pytest.raises(TestbedError) as caught:
        testbed.run(
            cluster, never_begins, protocol="via", mode=mode, firmware={"connect_all": 1, **settings}, timeout=20,
            scenario=scenario,
        )  # fmt: skip
    return str(caught.value)


@MODES
def test_ranks_without_a_way_to_each_other_fail_after_their_time(mode: Mode) -> None:
    failure = failure_of(Cluster.star(2, loss="100%"), mode, connect_timeout=50_000_000)
    assert "the connections before the program have failed: rank" in failure
    assert "cannot be connected: connect failed (VIP_TIMEOUT)" in failure
    assert "Traceback" not in failure


@MODES
def test_a_rank_that_has_no_slots_left_refuses_and_is_told(mode: Mode) -> None:
    failure = failure_of(Cluster.star(5), mode, slots=40, depth=8)
    assert "cannot be connected" in failure
    assert "more slots allow more" in failure
    assert "Traceback" not in failure


@MODES
@pytest.mark.parametrize("time", ["0", "12ms"])
def test_a_rank_that_dies_before_or_after_it_has_accepted_does_not_leave_its_peers_waiting(
    mode: Mode, time: str
) -> None:
    """A connection needs 10 ms for its request and answer; the greeting comes after."""
    died = Scenario.from_toml(f'[[fault]]\nkind = "crash"\non = "n2"\nat = "{time}"\n')
    failure = failure_of(Cluster.star(2, delay="5ms"), mode, died, connect_timeout=100_000_000)
    assert "n1: the connections before the program have failed: rank 1 cannot be connected" in failure

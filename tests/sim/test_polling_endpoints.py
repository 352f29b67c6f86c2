"""AM-II programs that poll in a loop, in the simulation."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster
from testbed.runtime.nodes.node_run import ProgramError
from tests.sim.polling_workload import SQUARES, PollingWorkload


@pytest.mark.parametrize("profile", ["ideal", "now-1998"])
def test_programs_that_only_poll_terminate(profile: str) -> None:
    result = testbed.run(
        Cluster.star(3, delay="5us"), PollingWorkload(), mode="sim", protocol="am2", profile=profile, timeout=60
    )
    assert result.results == dict.fromkeys(("n1", "n2", "n3"), SQUARES)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_poll_without_await_is_an_error_that_shows_the_correct_call() -> None:
    with pytest.raises(ProgramError, match=r"was not awaited, .* write 'await endpoint\.poll\(\)'"):
        testbed.run(Cluster.star(2), PollingWorkload(awaits=False), mode="sim", protocol="am2", timeout=60)

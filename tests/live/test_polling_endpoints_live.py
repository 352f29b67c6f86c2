"""AM-II programs that poll in a loop, in namespaces."""

from __future__ import annotations

from typing import Literal

import pytest

import testbed
from testbed import Cluster
from testbed.runtime.nodes.node_run import ProgramError
from tests.sim.polling_workload import SQUARES, PollingWorkload

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


@pytest.mark.parametrize("nics", ["inline", "shared"])
def test_programs_that_only_poll_terminate(nics: Literal["inline", "shared"]) -> None:
    result = testbed.run(Cluster.star(3), PollingWorkload(), protocol="am2", nics=nics, timeout=30)
    assert result.results == dict.fromkeys(("n1", "n2", "n3"), SQUARES)


@pytest.mark.parametrize("nics", ["inline", "shared"])
def test_a_poll_without_await_is_an_error_that_shows_the_correct_call(nics: Literal["inline", "shared"]) -> None:
    with pytest.raises(ProgramError, match=r"was not awaited, .* write 'await endpoint\.poll\(\)'"):
        testbed.run(Cluster.star(2), PollingWorkload(awaits=False), protocol="am2", nics=nics, timeout=30)

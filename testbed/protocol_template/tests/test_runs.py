"""The protocol in the simulation: its workload, and the conformance checks in a small scope. `testbed protocol check` runs
all of them in the full scope."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster
from testbed.controller.conformance.suite import CHECKS, Scope, State, check
from testbed.controller.runs.run_options import Mode

SCOPE = Scope(depth=2, cases=2)


def greet(mode: Mode) -> dict[str, int]:
    cluster = Cluster.star(3, loss="10%", seed=1)
    return dict(
        testbed.run(cluster, "postcard-greeting", protocol="postcard", mode=mode, settings={"size": "10KiB"}).results
    )


def test_greetings_arrive_although_frames_are_lost() -> None:
    assert greet("sim") == {"n1": 0, "n2": 10_240, "n3": 10_240}


@pytest.mark.parametrize("name", [check.name for check in CHECKS if not check.needs_namespaces])
def test_the_protocol_passes_the_check(name: str) -> None:
    result = check("postcard", name, SCOPE)
    assert result.state is not State.FAILED, result.reason

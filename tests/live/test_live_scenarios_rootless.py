"""Scenarios of an ordinary user, in a user namespace."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.cluster.records.state import Store
from testbed.spec.fault_models import Crash, Flap, Impair, Partition, Pause
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.test_live_scenarios import fault_counters, sleep, timed_rounds

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(120)]

# Modules that only a child uses are imported before it drops its privileges and cannot read them.
for _module in ("testbed.controller.checkers.runs", "testbed.controller.scenarios.live"):
    import_module(_module)


@pytest.mark.usefixtures("registered")
def test_faults_on_links_and_nodes_need_no_root(home: Path) -> None:
    def body() -> None:
        faults = (
            Partition(shape="isolated", node="n2", from_="100ms", to="300ms"),
            Flap(on="n2", at="700ms", for_="100ms"),
            Pause(on="n1", at="900ms", for_="100ms"),
            Impair(on="n1", from_="1200ms", to="2000ms", loss="30%"),
        )
        folder = home.parent / "links"
        testbed.run(
            Cluster.star(2),
            timed_rounds,
            scenario=Scenario(faults=faults),
            output=folder / "run",
            settings={"seconds": 2.5},
        )
        assert fault_counters(folder)["fault[4]"]["loss"] > 0
        folder = home.parent / "nodes"
        crash = Crash(on="n2", at="200ms", for_="100ms")
        result = testbed.run(Cluster.star(2), sleep, scenario=Scenario(faults=[crash]), output=folder / "run")
        assert result.results["n2"] - result.results["n1"] >= 200_000_000
        assert fault_counters(folder) == {"fault[1]": {"processes": 1}}
        assert Store().names() == []

    wait_for_success(as_user(home, body))

"""UDP as a baseline, and scenarios with commands, of an ordinary user in a user namespace."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.cluster.records.state import Store
from testbed.controller.runs.command_runs import run_commands
from testbed.spec.fault_models import Flap, Impair, Pause, Restart
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.test_commands_in_scenarios import fault_counters, rows

pytestmark = [
    pytest.mark.requires("root", "userns", "ping"),
    pytest.mark.usefixtures("machine"),
    pytest.mark.timeout(120),
]

# Modules that only a child uses are imported before it drops its privileges and cannot read them.
for _module in (
    "testbed.controller.scenarios.live",
    "testbed.runtime.sockets.udp",
    "testbed.workloads.bandwidth",
    "testbed.workloads.pingpong",
):
    import_module(_module)


@pytest.mark.usefixtures("registered")
def test_udp_needs_no_root(home: Path) -> None:
    def body() -> None:
        lossy = Cluster.star(2, loss="10%", delay="100us", seed=4)  # carried by the relay, for any user
        (row,) = testbed.run(
            lossy, "pingpong", protocol="udp", settings={"sizes": "4", "retry": "5ms", "count": 100}
        ).rows
        assert row["asked_again"] > 0
        settings = {"sizes": "4", "pattern": "one-way", "count": 200}
        (row,) = testbed.run(lossy, "bandwidth", protocol="udp", settings=settings).rows
        assert 0 < row["lost"] < row["count"]
        assert Store().names() == []

    wait_for_success(as_user(home, body))


@pytest.mark.usefixtures("registered")
def test_a_scenario_with_commands_needs_no_root(home: Path) -> None:
    def body() -> None:
        faults = (
            Pause(on="@client", at="100ms", for_="100ms"),
            Restart(on="n1", at="300ms"),
            Flap(on="n2", at="400ms", for_="100ms"),
            Impair(on="n1", from_="600ms", to="4s", loss="50%"),
        )
        cluster = Cluster.star(2, tags={"client": ["n2"]})
        commands = [("n1", "sleep 1.5"), ("@client", "ping -q -i 0.2 -w 5 n1; true")]
        folder = home.parent / "commands"
        run_commands(cluster, commands, scenario=Scenario(faults=faults), output=folder / "run")
        counted = fault_counters(folder)
        assert (counted["fault[1]"], counted["fault[2]"]) == ({"nodes": 1}, {"processes": 1})
        assert counted["fault[4]"]["loss"] > 0
        assert rows(folder)["n1"]["crashed"] == 1
        assert Store().names() == []

    wait_for_success(as_user(home, body))

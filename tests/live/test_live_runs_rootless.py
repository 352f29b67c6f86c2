"""Runs of an ordinary user in a user namespace: on NICs, on sockets, and as commands."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.cluster.records.state import Store
from testbed.controller.runs.command_runs import run_commands
from testbed.observe.recorded import FATES, read_run
from tests.live.ordinary_user import as_user, wait_for_success

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]

# Modules that only a child uses are imported before it drops its privileges and cannot read them.
for _module in (
    "protocols.emp.protocol",
    "testbed.controller.runs.live_execution",
    "testbed.runtime.sockets.tcp",
    "testbed.spec.toml_writer",
    "testbed.workloads.random_traffic",
):
    import_module(_module)


@pytest.mark.usefixtures("registered")
def test_workloads_run_on_nics_and_on_sockets(home: Path) -> None:
    def body() -> None:
        for protocol in ("emp", "tcp"):
            lossy = Cluster.star(3, delay="1ms", loss="2%", seed=4)
            result = testbed.run(
                lossy,
                "random",
                protocol=protocol,
                settings={"messages": 30},
                output=home.parent / protocol,
                check=False,
            )
            assert sum(row["received"] for row in result.results.values()) == 3 * 30
            run = read_run(home.parent / protocol)
            assert run.status == "done"
            assert run.result["fates"]["whole"] == (
                (run.folder / FATES).exists() and (run.folder / FATES).stat().st_size > 0
            )
        assert Store().names() == []

    wait_for_success(as_user(home, body))


@pytest.mark.usefixtures("registered")
def test_commands_run(home: Path) -> None:
    def body() -> None:
        result = run_commands(
            Cluster.star(2), [("n1", "id -u"), ("n2", "cat /proc/sys/kernel/hostname")], output=home.parent / "run"
        )
        assert [command.log.read_text() for command in result.commands] == ["0\n", "n2\n"]
        assert Store().names() == []

    wait_for_success(as_user(home, body))

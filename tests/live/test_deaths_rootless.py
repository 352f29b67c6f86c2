"""Killed processes of a cluster without root: the cluster survives its supervisor and ends with its namespace holder.

Every command reports the dead process, and `down` and `gc` leave nothing behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import testbed as product
from testbed import RunningCluster
from testbed.cluster import removal
from testbed.cluster.garbage import collect
from testbed.cluster.records.state import Store
from testbed.cluster.records.status import status
from testbed.cluster.services import relay_client
from testbed.cluster.startup import bring_up
from testbed.controller.runs import agents, live_execution, runner
from testbed.controller.verdict import outages
from testbed.errors import NotFoundError
from testbed.kernel import processes
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.live.iproute2 import ping
from tests.live.machine_state import eventually
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.traffic import events_of, relay_pid, supervisor_of
from tests.requirements import ordinary_users_python

__all__ = [
    "agents",
    "live_execution",
    "outages",
    "relay_client",
    "runner",
]  # imported before the child drops its privileges

pytestmark = [pytest.mark.requires("root", "userns", "ip", "ping"), pytest.mark.usefixtures("machine")]

NAME = "held"
DELAYED = Description(
    name=NAME,
    nodes=[Node(name="n1"), Node(name="n2")],
    switches=[Switch(name="s1")],
    links=[Link(ends=["n1", "s1"], delay="1ms"), Link(ends=["n2", "s1"])],
)


def up() -> RunningCluster:
    bring_up(Store(), resolve(DELAYED), name=NAME, origin="a test", lasting=True)
    return RunningCluster.attach(NAME)


def kill_holder(cluster: RunningCluster) -> int:
    holder = cluster.state.holder
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    eventually(lambda: not holder.is_alive, "the namespace holder has ended")
    return holder.pid


def assert_reports_end(pid: int, action: Callable[[], object]) -> None:
    message = f"cluster {NAME} has ended: process {pid}, which held its namespaces, has died"
    with pytest.raises(NotFoundError, match=message) as raised:
        action()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("remove", ["down", "gc", "up"])
def test_a_cluster_ends_with_its_namespace_holder_and_every_command_reports_it(home: Path, remove: str) -> None:
    def body() -> None:
        cluster = up()
        ping(cluster, "n1", "n2")
        relay, supervisor = processes.identity(relay_pid(cluster)), supervisor_of(cluster)
        pid = kill_holder(cluster)
        eventually(lambda: not relay.is_alive and not supervisor.is_alive, "the relay and the supervisor have ended")
        assert [event["pid"] for event in events_of(cluster, "namespace holder died")] == [pid]
        assert_reports_end(pid, lambda: status(cluster.state))
        assert_reports_end(pid, lambda: cluster["n1"].run(["true"]))
        assert_reports_end(pid, lambda: cluster.inject("n1", loss="1%"))
        assert_reports_end(pid, lambda: product.run(cluster, "pingpong", settings={"count": 5}))
        if remove == "up":
            ping(up(), "n1", "n2")
        if remove == "gc":
            removed = [finding.what for finding in collect(Store()) if finding.removed]
            assert [what for what in removed if what.startswith("cluster ")] == [f"cluster {NAME}"]
        else:
            removal.down(Store(), NAME)
        assert not Store().root.exists()

    wait_for_success(as_user(home, body))


def test_a_run_ends_with_the_namespace_holder_and_is_invalid(home: Path) -> None:
    def body() -> None:
        cluster = up()
        run_folder = home / "run"
        pid = os.fork()
        if not pid:
            eventually(
                lambda: any(path.stat().st_size for path in run_folder.glob("history/*.jsonl")),
                "messages are being sent",
                60,
            )
            kill_holder(cluster)
            os._exit(0)
        with pytest.raises(outages.InvalidRunError, match="has ended: process") as raised:
            product.run(cluster, "random", settings={"messages": 100_000}, output=run_folder, timeout=60, check=True)
        os.waitpid(pid, 0)
        assert [finding.what for finding in raised.value.verdict.findings] == ["cluster ended"]
        removal.down(Store(), NAME)
        subprocess.run(["rm", "-r", str(run_folder)], check=True)

    wait_for_success(as_user(home, body))


@pytest.mark.requires("user-python")
def test_an_ordinary_users_relay_survives_its_supervisor_and_restarts_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", ordinary_users_python())

    def body() -> None:
        cluster = up()
        relay, first = relay_pid(cluster), supervisor_of(cluster)
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: len(events_of(cluster, "supervisor restarted")) == 1, "the supervisor is running again")
        ping(cluster, "n1", "n2")
        assert relay_pid(cluster) == relay
        os.kill(relay, signal.SIGKILL)
        eventually(lambda: len(events_of(cluster, "relay restarted")) == 1, "the relay is running again")
        ping(cluster, "n1", "n2")
        removal.down(Store(), NAME)
        assert not Store().root.exists()

    wait_for_success(as_user(home, body))


def test_the_relay_continues_when_the_supervisor_cannot_be_restarted_and_reports_the_reason(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")

    def body() -> None:
        cluster = up()
        os.kill(supervisor_of(cluster).pid, signal.SIGKILL)
        eventually(lambda: len(events_of(cluster, "supervisor not restarted")) == 1, "the event is logged")
        assert "No such file" in events_of(cluster, "supervisor not restarted")[0]["reason"]
        ping(cluster, "n1", "n2")
        (missing,) = status(cluster.state).missing
        assert "its supervisor is GONE" in missing
        assert up().state.phase == "up"
        assert status(cluster.state).missing == ()
        removal.down(Store(), NAME)

    wait_for_success(as_user(home, body))

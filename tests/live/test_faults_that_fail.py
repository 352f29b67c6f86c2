"""Faults that cannot be applied, and processes that die during a fault: the cluster stays consistent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.faults import fault_injection
from testbed.cluster.records.state import Store
from testbed.cluster.records.status import status
from testbed.cluster.removal import down
from testbed.cluster.services import relay_client
from testbed.cluster.startup import bring_up
from testbed.errors import KernelError, NotFoundError
from testbed.kernel import namespaces
from testbed.spec.resolver import resolve
from tests.live.iproute2 import ping
from tests.live.machine_state import eventually
from tests.live.traffic import events_of, relay_pid, relay_report, relayed_links, supervisor_of

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]


@pytest.fixture
def star() -> Iterator[RunningCluster]:
    with Cluster.star(3).up() as cluster:
        yield cluster


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the relay's next configuration fail, after the kernel's part was applied."""
    real = relay_client.engage

    def fail(*_: object) -> None:
        monkeypatch.setattr(relay_client, "engage", real)
        raise KernelError("injected failure")

    monkeypatch.setattr(relay_client, "engage", fail)


def programs(cluster: RunningCluster) -> dict[str, int]:
    return {node.name: len(node.programs) for node in status(cluster.state).nodes}


def test_a_failed_injection_is_rolled_back_in_a_held_cluster(
    star: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = star.state
    fail_once(monkeypatch)
    with pytest.raises(KernelError, match="injected failure"):
        star.inject("n1", delay="1ms")
    assert star.state == before
    assert namespaces.names() == []
    ping(star, "n1", "n2")


def test_a_rollback_keeps_the_fate_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = str(tmp_path / "fates")
    layout = resolve(Cluster.star(2))
    store = Store()
    bring_up(store, layout, name="logging", origin="test", lasting=True, log=log)
    try:
        fail_once(monkeypatch)
        with pytest.raises(KernelError, match="injected failure"):
            fault_injection.inject(store, "logging", "n1", {"delay": 10**6})
        assert store.choose("logging").log == log
    finally:
        down(store, "logging")


def test_a_load_with_an_unknown_sender_does_not_start(star: RunningCluster) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        star.load_link(["n1", "nobody"], "n2", "1mbit")
    assert set(programs(star).values()) == {0}
    assert star.state.injected == ()


def test_a_partition_from_an_unconnected_node_cuts_no_link() -> None:
    description = Cluster.model_validate(
        {
            "name": "unconnected",
            "node": [{"name": "n1"}, {"name": "n2"}, {"name": "alone"}],
            "switch": [{"name": "s1"}],
            "link": [{"ends": ["n1", "s1"]}, {"ends": ["n2", "s1"]}],
        }
    )
    with description.up() as cluster, cluster.partition(["n1", "n2"], ["alone"]):
        ping(cluster, "n1", "n2")


def test_the_supervisor_ends_when_no_service_needs_it(star: RunningCluster) -> None:
    star.inject("n1", delay="1ms")
    supervisor = supervisor_of(star)
    star.inject("n2", delay="1ms")
    assert supervisor_of(star) == supervisor
    star.heal()
    eventually(lambda: not supervisor.is_alive, "the supervisor has ended")


def test_a_timed_fault_heals_with_a_declared_file_of_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace").write_text("1\n2\n3\n")
    description = Cluster.model_validate(
        {
            "name": "traced",
            "node": [{"name": "n1"}, {"name": "n2"}],
            "switch": [{"name": "s1"}],
            "link": [{"ends": ["n1", "s1"], "rate_trace": "trace"}, {"ends": ["n2", "s1"]}],
        }
    )
    monkeypatch.chdir(tmp_path)
    with description.up() as cluster:
        monkeypatch.chdir("/")
        cluster.inject("n2", delay="1ms", seconds=0.2)
        eventually(lambda: not cluster.state.injected, "the injection has been lifted")


def test_an_injection_right_after_the_relay_was_killed_is_in_force(star: RunningCluster) -> None:
    star.inject("n1", delay="1ms")
    for number in range(5):
        os.kill(relay_pid(star), signal.SIGKILL)
        star.inject("n1", delay=f"{number + 2}ms")
        name = star.state.layout.links[0].name
        assert relayed_links(star)[name].forward.impairment.delay == (number + 2) * 10**6
        assert name in relay_report(star)["links"]


def test_forwarded_frames_are_not_reported_as_lost_when_the_relay_dies(star: RunningCluster) -> None:
    star.inject("n1", delay="1ms")
    with star.load_link(["n2"], "n1", "20mbit"):
        eventually(lambda: offered_frames(star) > 500, "the load's frames are forwarded")
    os.kill(relay_pid(star), signal.SIGKILL)
    eventually(lambda: bool(events_of(star, "relay restarted")), "the relay has restarted")
    (restarted,) = events_of(star, "relay restarted")
    assert restarted["lost"] < 20  # at most neighbour discovery


def offered_frames(cluster: RunningCluster) -> int:
    links = relay_report(cluster)["links"].values()
    return sum(direction["counters"]["offered"] for link in links for direction in link.values())

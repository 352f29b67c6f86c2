"""Faults that cannot be applied, or whose command is killed, leave everything as it was, or as the next command expects
it."""

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
        raise KernelError("made to fail")

    monkeypatch.setattr(relay_client, "engage", fail)


def programs(cluster: RunningCluster) -> dict[str, int]:
    return {node.name: len(node.programs) for node in status(cluster.state).nodes}


def test_a_cluster_that_ends_with_its_process_is_rolled_back_where_it_is(
    star: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = star.state
    fail_once(monkeypatch)
    with pytest.raises(KernelError, match="made to fail"):
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
        with pytest.raises(KernelError, match="made to fail"):
            fault_injection.inject(store, "logging", "n1", {"delay": 10**6})
        assert store.choose("logging").log == log
    finally:
        down(store, "logging")


def test_a_load_that_cannot_start_completely_does_not_start(star: RunningCluster) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        star.load_link(["n1", "nobody"], "n2", "1mbit")
    assert set(programs(star).values()) == {0}
    assert star.state.injected == ()


def test_a_partition_from_a_node_without_a_link_cuts_nothing() -> None:
    made = Cluster.model_validate(
        {
            "name": "apart",
            "node": [{"name": "n1"}, {"name": "n2"}, {"name": "alone"}],
            "switch": [{"name": "s1"}],
            "link": [{"ends": ["n1", "s1"]}, {"ends": ["n2", "s1"]}],
        }
    )
    with made.up() as cluster, cluster.partition(["n1", "n2"], ["alone"]):
        ping(cluster, "n1", "n2")


def test_one_supervisor_runs_as_long_as_a_service_needs_it(star: RunningCluster) -> None:
    star.inject("n1", delay="1ms")
    supervisor = supervisor_of(star)
    star.inject("n2", delay="1ms")
    assert supervisor_of(star) == supervisor
    star.heal()
    eventually(lambda: not supervisor.is_alive, "the supervisor has ended")


def test_a_self_healing_fault_heals_although_a_declared_file_has_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace").write_text("1\n2\n3\n")
    made = Cluster.model_validate(
        {
            "name": "placed",
            "node": [{"name": "n1"}, {"name": "n2"}],
            "switch": [{"name": "s1"}],
            "link": [{"ends": ["n1", "s1"], "rate_trace": "trace"}, {"ends": ["n2", "s1"]}],
        }
    )
    monkeypatch.chdir(tmp_path)
    with made.up() as cluster:
        monkeypatch.chdir("/")
        cluster.inject("n2", delay="1ms", seconds=0.2)
        eventually(lambda: not cluster.state.injected, "it has healed itself")


def test_an_injection_is_in_force_although_the_relay_has_just_been_killed(star: RunningCluster) -> None:
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
        eventually(lambda: offered(star) > 500, "the load's frames are carried")
    os.kill(relay_pid(star), signal.SIGKILL)
    eventually(lambda: bool(events_of(star, "relay restarted")), "the relay is back")
    (restarted,) = events_of(star, "relay restarted")
    assert restarted["lost"] < 20  # at most neighbour discovery


def offered(cluster: RunningCluster) -> int:
    links = relay_report(cluster)["links"].values()
    return sum(direction["counters"]["offered"] for link in links for direction in link.values())

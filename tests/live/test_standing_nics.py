"""Supervised agents of shared NICs: killed agents, supervisors and owners under traffic, status, events and verdicts."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

import testbed as product
from testbed import Cluster, Grade, RunningCluster, share_nics
from testbed.cluster.garbage import collect
from testbed.cluster.records.state import Store
from testbed.controller.cluster_check import baseline, verdict
from testbed.controller.shared_nics import NicSharing
from testbed.errors import ConflictError
from testbed.kernel.children import in_child
from testbed.kernel.processes import Identity
from testbed.runtime import event_log
from testbed.runtime.supervision import running_supervisor
from tests.live.machine_state import eventually
from tests.live.node_sockets import accepts_gso
from tests.live.reattaching_hosts import finish_all, reattaching_pairs, wait_for_progress
from tests.live.testbed_command import TESTBED, testbed
from tests.live.traffic import supervisor_of

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 30.0  # s
KILLS = 6


def kill_agent(sharing: NicSharing, node: str) -> None:
    """Kill a node's agent and wait for its restart."""
    before = sharing.agent_pids()[node]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: sharing.agent_pids().get(node, before) != before, "the agent has restarted", TIMEOUT)


def event_nodes(cluster: RunningCluster, event: str) -> list[str]:
    """Return the nodes of all events with this name."""
    directory = Store().directory(cluster.name)
    return [str(record["node"]) for record in event_log.read(directory) if record["event"] == event]


def test_agents_killed_under_traffic_are_restarted_and_their_peers_are_notified() -> None:
    """n1 and n2 exchange messages while their agents are killed in turn; n3 and n4 on the same switch are not affected."""
    pairs = {("n1", 0): ("n2", 0), ("n1", 1): ("n2", 1), ("n3", 0): ("n4", 0)}
    with (
        Cluster.star(4).up() as cluster,
        share_nics(cluster, functions=2) as sharing,
        reattaching_pairs(cluster, pairs, 2) as hosts,
    ):
        victims = [("n1", "n2")[kill % 2] for kill in range(KILLS)]
        for node in victims:
            kill_agent(sharing, node)
            wait_for_progress(hosts)
        records = finish_all(hosts)
        eventually(lambda: event_nodes(cluster, "NIC agent restarted") == victims, "all restarts are logged", TIMEOUT)
        assert event_nodes(cluster, "NIC agent died") == victims
    for (node, _), record in records.items():
        assert record.wrong == []
        is_affected = node in ("n1", "n2")
        assert len(record.gone) == (KILLS // 2 if is_affected else 0)
        assert all("agent of the NIC has ended" in reported for reported in record.gone)
        assert (len(record.failures) >= KILLS // 2) == is_affected  # reported by the peer's restarted agent
        assert all("has restarted" in reported for reported in record.failures)


def agents_status(cluster: RunningCluster) -> dict[str, object]:
    """Return the agents' part of `testbed status --json`."""
    (document,) = [
        entry for entry in json.loads(testbed("status", "--json").stdout)["clusters"] if entry["name"] == cluster.name
    ]
    return {"shared": document["shared"], **{node["name"]: node["agent"] for node in document["nodes"]}}


def test_status_shows_the_agents_and_their_attached_processes() -> None:
    with Cluster.star(2).up() as cluster:
        assert agents_status(cluster) == {"shared": None, "n1": None, "n2": None}
        with (
            share_nics(cluster, functions=2) as sharing,
            reattaching_pairs(cluster, {("n1", 1): ("n2", 0)}, 2) as hosts,
        ):
            agents = sharing.agent_pids()
            assert agents_status(cluster) == {
                "shared": {"protocol": "emp", "functions": 2, "owner": os.getpid()},
                "n1": {"pid": agents["n1"], "hosts": [{"function": 1, "pid": hosts["n1", 1].pid}], "lost": 0},
                "n2": {"pid": agents["n2"], "hosts": [{"function": 0, "pid": hosts["n2", 0].pid}], "lost": 0},
            }
            output = testbed("status").stdout
            assert f"agent {agents['n1']}, 1 attached" in output
            assert "NICs shared for emp, 2 functions each" in output
            assert "GONE" not in output
            finish_all(hosts)


def test_agents_and_transfers_survive_the_supervisor_which_is_restarted() -> None:
    with (
        Cluster.star(2).up() as cluster,
        share_nics(cluster) as sharing,
        reattaching_pairs(cluster, {("n1", 0): ("n2", 0)}, 1) as hosts,
    ):
        agents, first = sharing.agent_pids(), supervisor_of(cluster)
        os.kill(first.pid, signal.SIGKILL)
        os.waitpid(first.pid, 0)
        eventually(lambda: has_new_supervisor(cluster, first), "the supervisor has restarted", TIMEOUT)
        wait_for_progress(hosts)
        assert [record.wrong + record.gone + record.failures for record in finish_all(hosts).values()] == [[], []]
        assert sharing.agent_pids() == agents
        with cluster.inject("n1", loss="1%"):  # a change of the cluster keeps the agents
            assert sharing.agent_pids() == agents
        kill_agent(sharing, "n1")
        eventually(lambda: event_nodes(cluster, "NIC agent restarted") == ["n1"], "the restart is logged", TIMEOUT)


def has_new_supervisor(cluster: RunningCluster, first: Identity) -> bool:
    return running_supervisor(Store().directory(cluster.name)) not in (None, first)


def test_the_nics_command_survives_a_supervisor_restart_and_reports_the_clusters_end() -> None:
    cluster = Cluster.star(2).up("sharing", keep=True)
    try:
        with subprocess.Popen([TESTBED, "nics", "--name", "sharing"], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "are shared" in process.stderr.readline()
            first = supervisor_of(cluster)
            os.kill(first.pid, signal.SIGKILL)
            eventually(lambda: has_new_supervisor(cluster, first), "the supervisor has restarted", TIMEOUT)
            assert testbed("status").stdout.count(" attached") == 2
            assert testbed("down", "--name", "sharing").returncode == 0
            assert process.wait(TIMEOUT) != 0
            assert "cluster sharing has been taken down" in process.stderr.read()
    finally:
        if Store().read("sharing") is not None:
            cluster.down()


def test_agents_end_with_their_killed_owner() -> None:
    with Cluster.star(2).up() as cluster:
        with subprocess.Popen([TESTBED, "nics", "--name", cluster.name], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "are shared" in process.stderr.readline()
            assert not accepts_gso(cluster, "n1")
            process.kill()
        eventually(
            lambda: cluster.state.nics is None and running_supervisor(Store().directory(cluster.name)) is None,
            "the NICs are no longer shared",
            TIMEOUT,
        )
        assert accepts_gso(cluster, "n1")
        with share_nics(cluster) as sharing:
            assert sorted(sharing.agent_pids()) == ["n1", "n2"]


def test_a_killed_process_with_a_held_cluster_leaves_no_agents() -> None:
    """The fixture `machine` checks for leftovers."""

    def share_and_die() -> None:
        with Cluster.star(2).up() as cluster, share_nics(cluster):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Exception, match=r"signal 9|killed|died"):
        in_child(share_and_die)
    eventually(lambda: not Store().names(), "the namespace holder has removed the cluster", TIMEOUT)
    assert not [
        finding for finding in collect(Store()) if not finding.what.startswith("directory ")
    ]  # directories of other killed processes may remain


def test_a_verdict_reports_a_restarted_agent() -> None:
    with Cluster.star(2).up() as cluster, share_nics(cluster) as sharing:
        before = baseline(cluster)
        quiet = verdict(cluster, before)
        (gap,) = [finding for finding in quiet.findings if finding.what == "NIC agent gap"]
        assert (gap.measured, gap.grade) == (0, Grade.TRUSTED)
        kill_agent(sharing, "n2")
        after = verdict(cluster, before)
        (gap,) = [finding for finding in after.findings if finding.what == "NIC agent gap"]
        assert gap.grade is Grade.INVALID
        assert "n2: the agent died and was restarted" in gap.reason
        assert after.grade is Grade.INVALID


def test_a_run_on_shared_nics_of_a_cluster_is_rejected() -> None:
    with Cluster.star(2).up() as cluster:
        with share_nics(cluster), pytest.raises(ConflictError, match="two firmwares would answer each frame"):
            product.run(cluster, "pingpong", settings={"count": 5})
        assert product.run(cluster, "pingpong", settings={"count": 5}).rows


def test_offloads_stay_off_on_shared_nics_during_changes_of_links() -> None:
    with Cluster.star(2).up() as cluster, share_nics(cluster):
        with cluster.inject("n1", delay="1ms"):
            assert not accepts_gso(cluster, "n1")
        with cluster.cut("n2"):
            pass
        assert not accepts_gso(cluster, "n1")
        assert not accepts_gso(cluster, "n2")


def test_an_added_node_gets_an_agent_and_communicates_with_the_others() -> None:
    cluster = Cluster.star(2).up("extended", keep=True)
    try:
        with share_nics(cluster) as sharing:
            before = sharing.agent_pids()
            cluster = Cluster.star(3).up("extended", keep=True)
            assert sorted(sharing.agent_pids()) == ["n1", "n2", "n3"]
            assert sharing.agent_pids()["n1"] != before["n1"]
            with reattaching_pairs(cluster, {("n1", 0): ("n3", 0)}, 1) as hosts:
                assert [record.wrong + record.gone for record in finish_all(hosts).values()] == [[], []]
    finally:
        cluster.down()

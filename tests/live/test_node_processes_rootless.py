"""Node processes of an ordinary user: inside the cluster's user namespace, within its permissions."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from protocols.emp import host as emp
from protocols.emp.codec import ETHERTYPE as EMP
from testbed import Cluster, RunningCluster
from testbed.cluster import removal
from testbed.cluster.records.state import Store
from testbed.cluster.startup import bring_up
from testbed.controller.runs.agents import agents
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import NotFoundError
from testbed.kernel import processes
from testbed.kernel.userns import call_inside
from testbed.runtime import event_log
from testbed.runtime.nodes.node_run import ClusterEndedError, NodeDiedError
from testbed.runtime.nodes.run_orders import ProgramNode
from testbed.spec.resolver import resolve
from tests.live.echo_programs import TIMEOUT, idle, ping, pong, wait_forever
from tests.live.echo_protocol import ETHERTYPE, EchoEndpoint, plug
from tests.live.machine_state import eventually
from tests.live.node_sockets import accepts_gso
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.test_failed_runs import FRAMES, parent_of, wait_until_stuck

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]


def test_programs_communicate_in_a_held_cluster(home: Path) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            with agents(cluster, plug, ETHERTYPE, {"n1": ping, "n2": pong}) as run:
                outcome = run.wait(TIMEOUT)
            assert outcome.results["n2"] == "n2 in n2"
            assert len(outcome.results["n1"]) == 20
            assert {finding.grade for finding in outcome.verdict.findings if finding.what == "NIC lost"} == {
                Grade.TRUSTED
            }

    wait_for_success(as_user(home, body))


def test_programs_communicate_through_a_relay_in_a_lasting_cluster(home: Path) -> None:
    """EMP retransmits lost frames."""

    async def send(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        await endpoint.send(node.numbers["n2"], 1, bytes(20_000))

    async def receive(endpoint: emp.Endpoint, node: ProgramNode) -> int:
        return (await endpoint.receive(node.numbers["n1"], 1, bytearray(20_000))).length

    def body() -> None:
        store, layout = Store(), resolve(Cluster.star(2, delay="1ms", loss="5%", seed=3))
        bring_up(store, layout, name="star", origin="a test", lasting=True)
        cluster = RunningCluster.attach("star")
        for _ in range(2):
            with agents(cluster, emp.plug(), EMP, {"n1": send, "n2": receive}) as run:
                assert run.wait(TIMEOUT).results["n2"] == 20_000
        removal.down(store, "star")

    wait_for_success(as_user(home, body))


def test_offloads_are_restored_when_a_run_ends_and_when_its_parent_is_killed(home: Path) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever}) as run:
                assert not accepts_gso_inside(cluster, "n1")
            assert accepts_gso_inside(cluster, "n1")
            with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever}) as run:
                assert not accepts_gso_inside(cluster, "n1")
                os.kill(parent_of(run), signal.SIGKILL)
                with pytest.raises(NodeDiedError):
                    run.wait(TIMEOUT)
            assert accepts_gso_inside(cluster, "n1")
            events = [event["event"] for event in event_log.read(Store().directory(cluster.name))]
            assert "offloads left off" not in events

    wait_for_success(as_user(home, body))


def test_a_flood_that_overflows_a_users_smaller_buffers_is_reported(home: Path, tmp_path: Path) -> None:
    """An unprivileged socket's buffer is limited by net.core.rmem_max."""
    flooded = tmp_path / "flooded"

    async def flood(endpoint: EchoEndpoint, node: ProgramNode) -> None:
        for _ in range(FRAMES):
            endpoint.send(node.numbers["n2"], bytes(1_400))
        flooded.touch()

    async def block(_endpoint: EchoEndpoint, _node: ProgramNode) -> None:
        while not flooded.exists():
            time.sleep(0.001)  # a program that blocks its NIC

    def body() -> None:
        with Cluster.star(2).up() as cluster:
            with agents(cluster, plug, ETHERTYPE, {"n1": flood, "n2": block}) as run:
                outcome = run.wait(TIMEOUT)
            assert outcome.verdict.grade is Grade.INVALID
            assert f"NIC lost on n2: {outcome.reports['n2'].dropped} frames" in outcome.invalid

    wait_for_success(as_user(home, body))


def test_a_run_ends_with_the_namespace_holder_and_the_next_one_is_rejected(home: Path) -> None:
    async def wait(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        await node.loop.sleep(60_000_000_000)

    def body() -> None:
        store = Store()
        bring_up(store, resolve(Cluster.star(2)), name="star", origin="a test", lasting=True)
        cluster = RunningCluster.attach("star")
        holder = cluster.state.holder
        assert holder is not None
        with agents(cluster, plug, ETHERTYPE, {"n1": wait, "n2": wait}) as run:
            processes.end(holder)
            with pytest.raises(ClusterEndedError, match=f"cluster star has ended: process {holder.pid}"):
                run.wait(TIMEOUT)
        with (
            pytest.raises(NotFoundError, match="cluster star has ended"),
            agents(cluster, plug, ETHERTYPE, {"n1": wait}),
        ):
            pass
        removal.down(store, "star")

    wait_for_success(as_user(home, body))


def accepts_gso_inside(cluster: RunningCluster, node: str) -> bool | None:
    assert cluster.state.holder is not None
    return call_inside(cluster.state.holder.pid, lambda: accepts_gso(cluster, node))


def test_deaths_and_pending_operations_are_reported(home: Path) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": idle}) as run:
                assert wait_until_stuck(run, 0.5).waiting["n1"][0].startswith("the program waits for a message")
            with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever}) as run:
                run.kill("n2")
                with pytest.raises(NodeDiedError, match="n2: its process was ended by signal 9"):
                    run.wait(TIMEOUT)
            with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever}) as run:
                os.kill(run.pids["n1"], signal.SIGKILL)
                with pytest.raises(NodeDiedError, match="n1"):
                    run.wait(TIMEOUT)

    wait_for_success(as_user(home, body))


def test_node_processes_and_cluster_end_with_the_users_process(home: Path) -> None:
    reader, writer = os.pipe()

    def hold() -> None:
        cluster = Cluster.star(2).up()
        with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever}) as run:
            os.write(writer, " ".join(str(pid) for pid in (parent_of(run), *run.pids.values())).encode() + b"\n")
            signal.pause()

    child = as_user(home, hold)
    os.close(writer)
    with open(reader) as text:
        pids = text.readline().split()
    assert len(pids) == 3
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    eventually(lambda: not any(Path("/proc", pid).exists() for pid in pids), "all node processes end")
    eventually(lambda: list(home.iterdir()) == [], "the state is removed")

"""Runs with faults outside the protocol: frames lost inside the emulator, stalled programs, killed or paused processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocols.emp import host as emp
from protocols.emp.codec import ETHERTYPE as EMP
from protocols.mpi import emp as mpi
from protocols.mpi.comm import Comm
from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.controller.runs import agents as controller
from testbed.controller.runs.agents import agents
from testbed.controller.verdict.verdicts import Finding, Grade
from testbed.errors import ConflictError, TestbedError
from testbed.kernel import offloads
from testbed.kernel.children import in_child
from testbed.kernel.offloads import Offloads
from testbed.kernel.syscalls import CLONE_NEWNET, setns
from testbed.runtime import event_log
from testbed.runtime.nodes import node_run as runs
from testbed.runtime.nodes.node_run import NodeDiedError, Run, StuckError
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live.echo_programs import TIMEOUT, idle, ping, pong, wait_forever
from tests.live.echo_protocol import ETHERTYPE, EchoEndpoint, plug
from tests.live.machine_state import eventually
from tests.live.node_sockets import accepts_gso

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

MILLISECOND = 1_000_000  # ns
LONG = 3_600.0  # seconds: timeout of runs that end for another reason
FRAMES = 20_000
MACHINE = ("softnet drops", "steal", "relay waiting")  # findings about the machine, which no test depends on


def nic_losses(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.link: finding for finding in findings if finding.what == "NIC lost"}


def parent_of(run: Run) -> int:
    pid = next(iter(run.pids.values()))
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Verdicts


def test_frames_dropped_at_a_stopped_node_make_the_run_invalid(
    tmp_path: Path,
) -> None:
    started, flooded = tmp_path / "started", tmp_path / "flooded"

    async def flood(endpoint: EchoEndpoint, node: ProgramNode) -> None:
        while not started.exists():
            await node.loop.sleep(MILLISECOND)
        for _ in range(FRAMES):
            endpoint.send(node.numbers["n2"], bytes(1_400))
        flooded.touch()

    async def wait_for_flood(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        while not flooded.exists():
            await node.loop.sleep(MILLISECOND)

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": flood, "n2": wait_for_flood}) as run,
    ):
        os.kill(run.pids["n2"], signal.SIGSTOP)
        started.touch()
        eventually(flooded.exists, "all frames are sent")
        os.kill(run.pids["n2"], signal.SIGCONT)
        outcome = run.wait(TIMEOUT)
    dropped = outcome.reports["n2"].dropped
    assert dropped > 0
    assert outcome.verdict.grade is Grade.INVALID
    findings = nic_losses(outcome.verdict.findings)
    assert (findings["n1"].grade, findings["n1"].measured) == (Grade.TRUSTED, 0)
    assert (findings["n2"].grade, findings["n2"].measured) == (Grade.INVALID, dropped)
    assert f"NIC lost on n2: {dropped} frames ({dropped} that its process did not read in time)" in outcome.invalid


def test_a_run_without_losses_is_trusted() -> None:
    with Cluster.star(2).up() as cluster, agents(cluster, plug, ETHERTYPE, {"n1": ping, "n2": pong}) as run:
        outcome = run.wait(TIMEOUT)
    findings = outcome.verdict.findings
    assert {finding.what for finding in findings} >= {"NIC lost", "softnet drops"}
    assert all(finding.grade is Grade.TRUSTED for finding in findings if finding.what not in MACHINE)
    if all(finding.grade is Grade.TRUSTED for finding in findings if finding.what in MACHINE):
        assert outcome.verdict.grade is Grade.TRUSTED
        assert outcome.invalid == ""


def test_a_run_with_a_restarted_relay_is_invalid() -> None:
    """The cluster's verdict on the run's span is part of the run's verdict."""

    async def until_killed(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        while not any(event["event"] == "relay restarted" for event in event_log.read(Store().directory("star-2"))):
            await node.loop.sleep(MILLISECOND)

    with Cluster.star(2, delay="1ms").up(name="star-2") as cluster:
        with agents(cluster, plug, ETHERTYPE, {"n1": until_killed}) as run:
            relay = controller.baseline(cluster).relay
            assert relay is not None
            os.kill(relay["pid"], signal.SIGKILL)
            outcome = run.wait(TIMEOUT)
        assert outcome.verdict.grade is Grade.INVALID
        assert "relay gap" in outcome.invalid


def test_the_losses_of_a_killed_node_are_undecided() -> None:
    with Cluster.star(2).up() as cluster, agents(cluster, plug, ETHERTYPE, {"n1": idle, "n2": wait_forever}) as run:
        run.kill("n2")
        outcome = run.wait(TIMEOUT, without=["n2"])
    assert [finding.link for finding in outcome.verdict.undecided if finding.what == "NIC lost"] == ["n2"]


# Progress


def wait_until_stuck(run: Run, patience: float) -> StuckError:
    """Wait with this patience for a run without progress; return its error."""
    start = time.monotonic()
    with pytest.raises(StuckError, match=r"for [\d.]+ s no program and no transfer has ended") as caught:
        run.wait(LONG, patience=patience)
    assert patience <= time.monotonic() - start < TIMEOUT
    return caught.value


def test_a_deadlock_ends_the_run_before_its_timeout() -> None:
    async def receive(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        await Comm(mpi.device(endpoint)).Recv(bytearray(4), 1 - node.number, tag=1)

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, emp.plug(), EMP, {"n1": receive, "n2": receive}) as run,
    ):
        waiting = wait_until_stuck(run, 0.5).waiting
    assert waiting["n1"][0].startswith("the program waits for a receive from rank 1, tag 1")
    assert waiting["n2"][0].startswith("the program waits for a receive from rank 0, tag 1")


def test_retransmissions_to_a_stopped_peer_are_no_progress() -> None:
    async def send(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        await endpoint.send(1 - node.number, 1, b"unanswered")

    async def receive(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        await endpoint.receive(1 - node.number, 2, bytearray(4))

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, emp.plug(), EMP, {"n1": send, "n2": receive}) as run,
    ):
        os.kill(run.pids["n2"], signal.SIGSTOP)
        waiting = wait_until_stuck(run, 1.0).waiting
    assert waiting["n1"][0].startswith("the program waits for the send to node 1")
    assert waiting["n2"] == ["it does not answer; its process's state is T (stopped)"]


def test_programs_that_spin_or_poll_forever_are_reported() -> None:
    async def spin(_endpoint: emp.Endpoint, _node: ProgramNode) -> None:
        while True:
            pass

    async def poll(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        request = await Comm(mpi.device(endpoint)).Irecv(bytearray(4), 1 - node.number, tag=1)
        while not await request.Test():
            pass

    with Cluster.star(2).up() as cluster, agents(cluster, emp.plug(), EMP, {"n1": spin, "n2": poll}) as run:
        waiting = wait_until_stuck(run, 0.5).waiting
    assert waiting["n1"][0].endswith("in spin")
    assert any("a receive from node 0, tag" in sentence for sentence in waiting["n2"])


def test_thousands_of_pending_transfers_are_summarized() -> None:
    """Equal ones are merged, and of different ones the first are named."""

    async def post_equal(endpoint: EchoEndpoint, _node: ProgramNode) -> None:
        for _ in range(5_000):
            endpoint.receive(bytearray(8))
        await endpoint.receive(bytearray(8))

    async def post_different(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        comm = Comm(mpi.device(endpoint))
        for tag in range(300):
            await comm.Irecv(bytearray(4), 1 - node.number, tag)
        await comm.Recv(bytearray(4), 1 - node.number, 300)

    with Cluster.star(2).up() as cluster, agents(cluster, plug, ETHERTYPE, {"n1": post_equal}) as run:
        waiting = wait_until_stuck(run, 0.5).waiting["n1"]
    assert waiting[-1] == "host: a message (5,001 times)"
    with Cluster.star(2).up() as cluster, agents(cluster, emp.plug(), EMP, {"n1": post_different}) as run:
        waiting = wait_until_stuck(run, 0.5).waiting["n1"]
    assert len(waiting) < 110
    assert re.fullmatch(r"and \d+ more", waiting[-1])


def test_a_slow_run_with_progress_is_not_stuck() -> None:
    """Messages at intervals below the patience, for longer than the patience."""

    async def send_slowly(endpoint: EchoEndpoint, node: ProgramNode) -> None:
        for _ in range(20):
            await node.loop.sleep(100 * MILLISECOND)
            await endpoint.send(node.numbers["n2"], b"still here")

    with Cluster.star(2).up() as cluster, agents(cluster, plug, ETHERTYPE, {"n1": send_slowly}) as run:
        start = time.monotonic()
        run.wait(LONG, patience=1.5)
        assert time.monotonic() - start >= 2.0


def test_the_end_of_a_program_is_progress() -> None:
    async def sleep(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        await node.loop.sleep(500 * MILLISECOND * (node.number + 1))

    with (
        Cluster.star(4).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {f"n{number}": sleep for number in range(1, 5)}) as run,
    ):
        run.wait(LONG, patience=1.5)


def test_progress_does_not_extend_the_timeout_of_a_run() -> None:
    async def send_slowly(endpoint: EchoEndpoint, node: ProgramNode) -> None:
        while True:
            await node.loop.sleep(MILLISECOND)
            await endpoint.send(node.numbers["n2"], b"message")

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": send_slowly, "n2": idle}) as run,
        pytest.raises(StuckError, match="programs have not ended within 1 s"),
    ):
        run.wait(1.0, patience=0.5)


def test_the_end_of_a_node_process_is_reported_while_its_child_is_running() -> None:
    async def exit_with_child(_endpoint: EchoEndpoint, _node: ProgramNode) -> None:
        if os.fork() == 0:
            signal.pause()
        os._exit(3)

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": exit_with_child, "n2": idle}) as run,
        pytest.raises(NodeDiedError, match="n1: its process ended with code 3"),
    ):
        run.wait(TIMEOUT)


# The parent of all node processes


@contextlib.contextmanager
def running_run(cluster: RunningCluster) -> Iterator[Run]:
    with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever}) as run:
        assert [accepts_gso(cluster, node) for node in ("n1", "n2", "n3")] == [False, False, True]
        yield run


def all_accept_gso(cluster: RunningCluster) -> bool:
    return all(accepts_gso(cluster, node) for node in ("n1", "n2", "n3"))


def test_offloads_are_restored_when_the_parent_is_killed() -> None:
    with Cluster.star(3).up() as cluster:
        with running_run(cluster) as run:
            os.kill(parent_of(run), signal.SIGKILL)
            with pytest.raises(NodeDiedError):
                run.wait(TIMEOUT)
        assert all_accept_gso(cluster)


def test_a_stopped_parent_blocks_the_others_only_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster.star(3).up() as cluster:
        with running_run(cluster) as run:
            os.kill(parent_of(run), signal.SIGSTOP)
            monkeypatch.setattr(runs, "TIMEOUT", 0.5)
        assert all_accept_gso(cluster)


def test_offloads_are_restored_by_the_next_run_when_all_processes_were_killed() -> None:
    with Cluster.star(3).up() as cluster:
        child = os.fork()
        if not child:
            with running_run(cluster) as run:
                os.kill(parent_of(run), signal.SIGKILL)
                os._exit(0)  # like a kill
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert accepts_gso(cluster, "n1") is False
        with agents(cluster, plug, ETHERTYPE, {"n1": idle, "n2": idle}) as run:
            run.wait(TIMEOUT)
        assert all_accept_gso(cluster)


def test_offloads_stay_off_at_a_link_that_was_impaired_during_the_run() -> None:
    with Cluster.star(3).up() as cluster:
        with running_run(cluster):
            cluster.inject("n1", loss="10%")
        assert [accepts_gso(cluster, node) for node in ("n1", "n2", "n3")] == [False, True, True]
        cluster.heal()
        assert all_accept_gso(cluster)


def test_a_run_restores_each_links_offloads() -> None:
    """A lossy link has no offloads, a delayed one those of TCP, an unimpaired one all."""
    expected = [Offloads.NONE, Offloads.TCP, Offloads.ALL]
    with Cluster.star(3).up() as cluster:
        cluster.inject("n1", loss="10%", delay="1ms")
        cluster.inject("n2", delay="1ms")
        assert [accepted_offloads(cluster, node) for node in ("n1", "n2", "n3")] == expected
        with agents(cluster, plug, ETHERTYPE, {"n1": idle, "n2": idle, "n3": idle}) as run:
            assert [accepted_offloads(cluster, node) for node in ("n1", "n2", "n3")] == [Offloads.NONE] * 3
            run.wait(TIMEOUT)
        assert [accepted_offloads(cluster, node) for node in ("n1", "n2", "n3")] == expected


def accepted_offloads(cluster: RunningCluster, node: str) -> Offloads | None:
    def query() -> Offloads | None:
        handle = os.open(cluster[node].namespace, os.O_RDONLY)
        setns(handle, CLONE_NEWNET)
        with socket.socket() as opened:
            return offloads.accepted(opened.fileno(), cluster[node].layout.nics[0].name)

    return in_child(query)


def test_offloads_stay_off_and_are_reported_while_another_process_changes_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "LOCK_TIMEOUT", 0.1)
    store = Store()
    with Cluster.star(3).up() as cluster:
        with store.locked(cluster.name, 1.0), running_run(cluster):
            pass
        assert [accepts_gso(cluster, node) for node in ("n1", "n2", "n3")] == [False, False, True]
        events = [
            event for event in event_log.read(store.directory(cluster.name)) if event["event"] == "offloads left off"
        ]
        assert [event["nodes"] for event in events] == [["n1", "n2"]]
        with (
            pytest.raises(ConflictError),
            store.locked(cluster.name, 1.0),
            controller.locked_offloads(store, cluster.name),
        ):
            pass
        with agents(cluster, plug, ETHERTYPE, {"n1": idle, "n2": idle}) as run:
            run.wait(TIMEOUT)
        assert all_accept_gso(cluster)


def test_a_run_that_cannot_start_leaves_the_offloads_enabled() -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such NIC")

    with Cluster.star(3).up() as cluster:
        with pytest.raises(TestbedError, match="no NIC can be built"), agents(cluster, fail, ETHERTYPE, {"n1": idle}):  # type: ignore[arg-type]
            pass
        assert all_accept_gso(cluster)

"""Failures on Myrinet between real interfaces: deadlocks, losses, cut cables, a killed relay, rejected injections."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster import removal
from testbed.cluster.records.state import Store
from testbed.controller.runs.agents import agents
from testbed.controller.verdict.verdicts import Grade
from testbed.engine.coroutines import until
from testbed.errors import UnsupportedError
from testbed.fabric.myrinet.route import append_crc
from testbed.runtime.nodes.run_orders import Program, ProgramNode
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.live import node_sockets
from tests.live.crossbar_runs import TIMEOUT, count_received, crossbar_cluster, relay_report, run_programs, send_some
from tests.live.machine_state import eventually
from tests.live.source_routed_protocol import ETHERTYPE, SourceRouteEndpoint, SourceRoutePlug, relative_route
from tests.live.traffic import events_of, relay_pid

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

SECOND = 1_000_000_000
PAIR = ("n1 s1:1", "n2 s1:2")


# Deadlock of worms


def ring() -> Cluster:
    """Return four crossbars in a ring of slow and long cables, with a node each.

    A frame of 1,500 bytes takes a quarter of a second, its head reaches the next crossbar after 30 ms, and a cable
    holds a third of it.
    """
    slow = {"rate": "50kbit", "delay": "30ms"}
    return Cluster(
        name="ring",
        nodes=[Node(name=f"n{number}") for number in range(1, 5)],
        switches=[Switch(name=f"s{number}", kind="myrinet") for number in range(1, 5)],
        links=[
            *(Link(ends=[f"n{number}", f"s{number}:1"]) for number in range(1, 5)),
            *(Link(ends=[f"s{number}:2", f"s{number % 4 + 1}:3"], **slow) for number in range(1, 5)),
        ],
    )


async def send_clockwise(start: int, endpoint: SourceRouteEndpoint, node: ProgramNode) -> list[int]:
    """Send to the second node clockwise, all nodes at once: each frame occupies the cable that another one needs."""
    await until(start)
    endpoint.send_along(relative_route(1, -1, -2), 1, 1400)
    await node.loop.sleep(2 * SECOND)
    endpoint.send_along(relative_route(0))
    await endpoint.frames(len(endpoint.firmware.came) + len(endpoint.firmware.broken) + 1)
    return [len(endpoint.firmware.came), len(endpoint.firmware.broken)]


def test_a_deadlock_of_worms_is_resolved_by_truncating_some_of_them() -> None:
    with ring().up() as cluster:
        program = partial(send_clockwise, time.monotonic_ns() + 2 * SECOND)
        outcome = run_programs(cluster, {f"n{number}": program for number in range(1, 5)})
        counts = relay_report(cluster)["switches"].values()
        truncated, swallowed = (sum(count[cause] for count in counts) for cause in ("truncated", "swallowed"))
    assert truncated > 0
    intact, broken = (sum(result[index] for result in outcome.results.values()) for index in (0, 1))
    assert intact >= 4, "the ring is free afterwards: each node receives its own frame"
    assert intact - 4 + broken + swallowed == 4
    assert all(finding.grade is Grade.TRUSTED for finding in outcome.verdict.findings if finding.what == "relay lost")


# Losses


async def send_many(endpoint: SourceRouteEndpoint, node: ProgramNode | SimNode) -> None:
    for _ in range(20):
        endpoint.send("n2", 10)
        await node.sleep(1_000_000) if isinstance(node, SimNode) else await node.loop.sleep(1_000_000)


async def listen(endpoint: SourceRouteEndpoint, node: ProgramNode | SimNode) -> list[int]:
    await node.sleep(SECOND) if isinstance(node, SimNode) else await node.loop.sleep(SECOND)
    return [number for _, number in endpoint.firmware.came]


def test_a_link_loses_the_same_frames_as_in_the_simulation() -> None:
    description = crossbar_cluster("n1 s1:1", "n2 s2:1", "s1:3 s2:2", loss="20%", corrupt="10%")
    layout = resolve(description)
    with Simulation(layout, SourceRoutePlug(layout)) as simulation:
        simulation.spawn("n1", send_many)
        received = simulation.spawn("n2", listen)
        simulation.run()
    with description.up() as cluster:
        outcome = run_programs(cluster, {"n1": send_many, "n2": listen})
    assert outcome.results["n2"] == received.result()
    assert 100 < len(received.result()) < 170


def test_frames_lost_inside_the_relay_make_a_run_invalid() -> None:
    """A paused relay's socket buffers overflow, because this sender ignores STOP."""

    async def wait(_endpoint: SourceRouteEndpoint, node: ProgramNode) -> None:
        await node.loop.sleep(2 * SECOND)

    with crossbar_cluster(*PAIR).up() as cluster:
        layout = cluster.state.layout
        with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, {"n1": wait, "n2": wait}) as run:
            pid = relay_pid(cluster)
            frame = append_crc(bytes(12) + ETHERTYPE.to_bytes(2, "big"), relative_route(1) + bytes(1400))
            with node_sockets.nic_sockets(cluster) as nics:
                os.kill(pid, signal.SIGSTOP)
                try:
                    for _ in range(40_000):
                        nics["n1"].send(frame)
                finally:
                    os.kill(pid, signal.SIGCONT)
            outcome = run.wait(TIMEOUT)
    assert outcome.verdict.grade is Grade.INVALID
    assert "relay lost on n1:eth0--s1:1 forward" in outcome.invalid


# Cuts, and restarts of the relay


async def keep_sending(endpoint: SourceRouteEndpoint, node: ProgramNode, folder: Path) -> int:
    """Send numbered frames until there is a file `stop`. The file `sent` holds the current number of frames, the file
    `last` the final one."""
    sent = 0
    while not (folder / "stop").exists():
        endpoint.send("n2")
        sent += 1
        (folder / "sent").write_text(str(sent))
        await node.loop.sleep(1_000_000)
    (folder / "sent").rename(folder / "last")
    return sent


async def keep_receiving(endpoint: SourceRouteEndpoint, node: ProgramNode, folder: Path) -> list[int]:
    """Receive until the last frame has arrived. The file `received` holds the number of the latest one."""
    received_number = 0
    while not (folder / "last").exists() or received_number < file_number(folder / "last"):
        await node.loop.sleep(1_000_000)
        if endpoint.firmware.came:
            received_number = endpoint.firmware.came[-1][1]
            (folder / "received").write_text(str(received_number))
    return [number for _, number in endpoint.firmware.came]


async def receive_for(endpoint: SourceRouteEndpoint, node: ProgramNode, seconds: float) -> list[int]:
    await node.loop.sleep(round(seconds * SECOND))
    return [number for _, number in endpoint.firmware.came]


def file_number(path: Path) -> int:
    """Return the number in a file; 0 if the file does not exist."""
    if not path.exists():
        return 0
    while not (text := path.read_text()):
        pass  # written at this moment
    return int(text)


@pytest.mark.parametrize("link", ["n1:eth0--s1:1", "s1:3--s2:2"], ids=["NIC", "trunk"])
def test_no_frame_passes_a_cut_cable_until_it_is_restored(link: str, tmp_path: Path) -> None:
    def wait_until_sent(count: int) -> None:
        target = file_number(tmp_path / "sent") + count
        eventually(lambda: file_number(tmp_path / "sent") >= target, "n1 sends", TIMEOUT)

    def wait_until_received(count: int) -> None:
        target = file_number(tmp_path / "sent") + count
        eventually(lambda: file_number(tmp_path / "received") >= target, "n2 receives", TIMEOUT)

    with crossbar_cluster("n1 s1:1", "n2 s2:1", "s1:3 s2:2").up() as cluster:
        layout = cluster.state.layout
        programs: dict[str, Program] = {
            "n1": partial(keep_sending, folder=tmp_path),
            "n2": partial(keep_receiving, folder=tmp_path),
        }
        with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, programs) as run:
            wait_until_received(50)
            with cluster.cut(link):
                wait_until_sent(100)
            wait_until_received(50)
            (tmp_path / "stop").touch()
            outcome = run.wait(TIMEOUT)
    sent, arrived = outcome.results["n1"], outcome.results["n2"]
    assert isinstance(sent, int)
    assert isinstance(arrived, list)
    missing = sorted(set(range(1, sent + 1)) - set(arrived))
    assert missing
    assert missing == list(range(missing[0], missing[-1] + 1)), "one gap"
    assert arrived[0] == 1
    assert arrived[-1] == sent


def test_frames_queued_in_a_nic_survive_a_restart_of_the_relay() -> None:
    """The link is slow, so that most frames are in the NIC when the relay is killed."""
    count = 3000
    with crossbar_cluster(*PAIR, rate="20mbit").up() as cluster:
        layout = cluster.state.layout
        programs: dict[str, Program] = {
            "n1": partial(send_some, count=count, size=1000),
            "n2": partial(receive_for, seconds=4),
        }
        with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, programs) as run:
            pid = relay_pid(cluster)
            time.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: events_of(cluster, "relay restarted"), "the relay has restarted")
            outcome = run.wait(TIMEOUT)
    arrived = outcome.results["n2"]
    assert isinstance(arrived, list)
    assert outcome.verdict.grade is Grade.INVALID
    assert arrived == sorted(arrived)
    assert arrived[-1] == count, "the last frame was queued in the NIC"


async def send_one(endpoint: SourceRouteEndpoint, _node: ProgramNode, peer: str) -> None:
    endpoint.send(peer)


def test_crossbars_and_nodes_can_be_added_and_removed_without_a_restart_of_the_relay() -> None:
    name = f"changing-{os.getpid()}"
    small, large = crossbar_cluster(*PAIR), crossbar_cluster("n1 s1:1", "n2 s1:2", "s1:3 s2:1", "n3 s2:4")
    pids = set()
    try:
        for description, peer, switches in ((small, "n2", 1), (large, "n3", 2), (large, "n2", 2), (small, "n2", 1)):
            cluster = description.up(name=name, keep=True, origin="a test")
            assert run_programs(cluster, {"n1": partial(send_one, peer=peer), peer: count_received}).results[peer] == [
                1,
                0,
            ]
            assert len(relay_report(cluster)["switches"]) == switches
            pids.add(relay_pid(cluster))
    finally:
        removal.down(Store(), name)
    assert len(pids) == 1


# Rejected injections


def is_rejected(cluster: RunningCluster, **keys: str) -> bool:
    before = cluster.state.injected
    with pytest.raises(UnsupportedError, match="keeps the order"):
        cluster.inject("n1", **keys)  # type: ignore[arg-type]
    return cluster.state.injected == before


def test_reordering_injections_are_rejected() -> None:
    with crossbar_cluster(*PAIR, delay="1ms").up() as cluster:
        assert is_rejected(cluster, delay="1ms", jitter="100us")
        assert is_rejected(cluster, delay="1ms", reorder="5%")
        assert is_rejected(cluster, queue="64KiB", rate="10mbit")
        with cluster.inject("n1", loss="5%", delay="2ms", rate="10mbit", rules=["drop nth(3)"]):
            assert relay_report(cluster)["links"]["n1:eth0--s1:1"]["forward"]["rules"]


@pytest.mark.parametrize("datapath", ["netem", "tc", "direct"])
def test_datapaths_other_than_the_relay_are_rejected_for_myrinet(datapath: str) -> None:
    with pytest.raises(
        UnsupportedError, match=f"'{datapath}' cannot carry this: links of kind myrinet are in the relay"
    ):
        crossbar_cluster(*PAIR).up(datapath=datapath)


def test_a_capture_contains_the_frames_of_nics_without_fates(tmp_path: Path) -> None:
    """A frame may enter a link long after its time stamp, so only the log of fates can assign a fate to it."""
    with crossbar_cluster(*PAIR, loss="50%").up() as cluster:
        with cluster.capture("all", tmp_path / "all.pcapng") as capture:
            outcome = run_programs(
                cluster, {"n1": partial(send_some, count=20), "n2": partial(receive_for, seconds=0.5)}
            )
        arrived = outcome.results["n2"]
        assert isinstance(arrived, list)
        assert 0 < len(arrived) < 20
        received = capture.result.frames
        assert received.keys() == {"n1:eth0", "n2:eth0"}
        assert received["n1:eth0"] >= 20
        assert 20 > received["n2:eth0"] >= len(arrived)
        assert not capture.result.fates

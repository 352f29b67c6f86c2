"""Failures on Myrinet between real interfaces: deadlocks, losses, pulled cables, a dead relay, refused requests."""

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


# Worms that wait for each other


def ring() -> Cluster:
    """Return four crossbars in a ring of slow and long cables, with a node at each.

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


async def around(endpoint: SourceRouteEndpoint, node: ProgramNode) -> list[int]:
    """Send to the second node clockwise, all nodes at once: each frame holds the cable that another one needs."""
    await node.loop.sleep_until((node.loop.now() // SECOND + 1) * SECOND)
    endpoint.send_along(relative_route(1, -1, -2), 1, 1400)
    await node.loop.sleep(2 * SECOND)
    endpoint.send_along(relative_route(0))
    await endpoint.frames(len(endpoint.firmware.came) + len(endpoint.firmware.broken) + 1)
    return [len(endpoint.firmware.came), len(endpoint.firmware.broken)]


def test_a_circle_of_waiting_worms_is_broken_by_truncating_some_of_them() -> None:
    with ring().up() as cluster:
        outcome = run_programs(cluster, {f"n{number}": around for number in range(1, 5)})
        counts = relay_report(cluster)["switches"].values()
        truncated, swallowed = (sum(count[cause] for count in counts) for cause in ("truncated", "swallowed"))
    assert truncated > 0
    whole, broken = (sum(result[place] for result in outcome.results.values()) for place in (0, 1))
    assert whole >= 4, "afterwards the ring is free: what each sent to itself came"
    assert whole - 4 + broken + swallowed == 4
    assert all(finding.grade is Grade.TRUSTED for finding in outcome.verdict.findings if finding.what == "relay lost")


# Losses


async def send_many(endpoint: SourceRouteEndpoint, node: ProgramNode | SimNode) -> None:
    for _ in range(20):
        endpoint.send("n2", 10)
        await node.sleep(1_000_000) if isinstance(node, SimNode) else await node.loop.sleep(1_000_000)


async def listen(endpoint: SourceRouteEndpoint, node: ProgramNode | SimNode) -> list[int]:
    await node.sleep(SECOND) if isinstance(node, SimNode) else await node.loop.sleep(SECOND)
    return [number for _, number in endpoint.firmware.came]


def test_the_frames_of_a_flow_that_a_link_loses_are_those_of_the_simulation() -> None:
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
    """A paused relay's socket buffers overflow, as this sender ignores STOP."""

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


# Cables, and the relay itself


async def keep_sending(endpoint: SourceRouteEndpoint, node: ProgramNode, folder: Path) -> int:
    """Send numbered frames until there is a file `stop`. The files `sent` and `last` have the number of frames so far, and
    at the end."""
    sent = 0
    while not (folder / "stop").exists():
        endpoint.send("n2")
        sent += 1
        (folder / "sent").write_text(str(sent))
        await node.loop.sleep(1_000_000)
    (folder / "sent").rename(folder / "last")
    return sent


async def keep_hearing(endpoint: SourceRouteEndpoint, node: ProgramNode, folder: Path) -> list[int]:
    """Listen until the last frame has come. The file `heard` has the number of the latest one."""
    heard = 0
    while not (folder / "last").exists() or heard < file_number(folder / "last"):
        await node.loop.sleep(1_000_000)
        if endpoint.firmware.came:
            heard = endpoint.firmware.came[-1][1]
            (folder / "heard").write_text(str(heard))
    return [number for _, number in endpoint.firmware.came]


async def hear_for(endpoint: SourceRouteEndpoint, node: ProgramNode, seconds: float) -> list[int]:
    await node.loop.sleep(round(seconds * SECOND))
    return [number for _, number in endpoint.firmware.came]


def file_number(path: Path) -> int:
    """Return the number in a file; 0 before there is one."""
    if not path.exists():
        return 0
    while not (text := path.read_text()):
        pass  # it is being written
    return int(text)


@pytest.mark.parametrize("link", ["n1:eth0--s1:1", "s1:3--s2:2"], ids=["of a NIC", "between crossbars"])
def test_no_frame_passes_a_cut_cable_until_it_is_restored(link: str, tmp_path: Path) -> None:
    def sends_more(count: int) -> None:
        least = file_number(tmp_path / "sent") + count
        eventually(lambda: file_number(tmp_path / "sent") >= least, "n1 sends", TIMEOUT)

    def hears_more(count: int) -> None:
        least = file_number(tmp_path / "sent") + count
        eventually(lambda: file_number(tmp_path / "heard") >= least, "n2 hears", TIMEOUT)

    with crossbar_cluster("n1 s1:1", "n2 s2:1", "s1:3 s2:2").up() as cluster:
        layout = cluster.state.layout
        programs: dict[str, Program] = {
            "n1": partial(keep_sending, folder=tmp_path),
            "n2": partial(keep_hearing, folder=tmp_path),
        }
        with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, programs) as run:
            hears_more(50)
            with cluster.cut(link):
                sends_more(100)
            hears_more(50)
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


def test_frames_waiting_in_a_nic_when_the_relay_is_killed_leave_after_its_restart() -> None:
    """The link is slow, so that most of them wait in the NIC when that happens."""
    count = 3000
    with crossbar_cluster(*PAIR, rate="20mbit").up() as cluster:
        layout = cluster.state.layout
        programs: dict[str, Program] = {
            "n1": partial(send_some, count=count, size=1000),
            "n2": partial(hear_for, seconds=4),
        }
        with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, programs) as run:
            pid = relay_pid(cluster)
            time.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: events_of(cluster, "relay restarted"), "another relay carries the links")
            outcome = run.wait(TIMEOUT)
    arrived = outcome.results["n2"]
    assert isinstance(arrived, list)
    assert outcome.verdict.grade is Grade.INVALID
    assert arrived == sorted(arrived)
    assert arrived[-1] == count, "the last one waited in the NIC"


async def send_one(endpoint: SourceRouteEndpoint, _node: ProgramNode, peer: str) -> None:
    endpoint.send(peer)


def test_another_crossbar_and_another_node_are_added_and_removed_while_the_relay_runs() -> None:
    name = f"grows-{os.getpid()}"
    few, more = crossbar_cluster(*PAIR), crossbar_cluster("n1 s1:1", "n2 s1:2", "s1:3 s2:1", "n3 s2:4")
    pids = set()
    try:
        for description, peer, switches in ((few, "n2", 1), (more, "n3", 2), (more, "n2", 2), (few, "n2", 1)):
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


# What is refused


def refused(cluster: RunningCluster, **keys: str) -> bool:
    before = cluster.state.injected
    with pytest.raises(UnsupportedError, match="keeps the order"):
        cluster.inject("n1", **keys)  # type: ignore[arg-type]  # a test's
    return cluster.state.injected == before


def test_reordering_injections_are_rejected() -> None:
    with crossbar_cluster(*PAIR, delay="1ms").up() as cluster:
        assert refused(cluster, delay="1ms", jitter="100us")
        assert refused(cluster, delay="1ms", reorder="5%")
        assert refused(cluster, queue="64KiB", rate="10mbit")
        with cluster.inject("n1", loss="5%", delay="2ms", rate="10mbit", rules=["drop nth(3)"]):
            assert relay_report(cluster)["links"]["n1:eth0--s1:1"]["forward"]["rules"]


@pytest.mark.parametrize("datapath", ["netem", "tc", "direct"])
def test_only_the_relay_has_myrinet(datapath: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{datapath}' cannot carry this: Myrinet's switches.*in the relay"):
        crossbar_cluster(*PAIR).up(datapath=datapath)


def test_a_capture_has_the_frames_of_nics_and_tells_no_fates(tmp_path: Path) -> None:
    """A frame enters a link when the network lets it, long after its stamp: which one meets a fate is in the log alone."""
    with crossbar_cluster(*PAIR, loss="50%").up() as cluster:
        with cluster.capture("all", tmp_path / "all.pcapng") as capture:
            outcome = run_programs(cluster, {"n1": partial(send_some, count=20), "n2": partial(hear_for, seconds=0.5)})
        arrived = outcome.results["n2"]
        assert isinstance(arrived, list)
        assert 0 < len(arrived) < 20
        received = capture.result.frames
        assert received.keys() == {"n1:eth0", "n2:eth0"}
        assert received["n1:eth0"] >= 20
        assert 20 > received["n2:eth0"] >= len(arrived)
        assert not capture.result.met

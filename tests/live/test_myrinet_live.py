"""Myrinet crossbars between real interfaces: forwarding, back-pressure, drops and their counters."""

from __future__ import annotations

import os
from functools import partial

import pytest

from protocols.core.profile import IDEAL
from protocols.emp import host as emp
from protocols.emp.myrinet.codec import ETHERTYPE as EMP
from protocols.emp.split_driver import split_driver
from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.cluster.records.status import status
from testbed.cluster.startup import bring_up
from testbed.controller.runs.agents import Placement, agents
from testbed.controller.verdict.verdicts import Grade
from testbed.runtime.nodes.run_orders import Dilation, Program, ProgramNode
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.dilation import slow_layout
from testbed.spec.resolver import resolve
from tests.live.crossbar_runs import (
    TIMEOUT,
    count_received,
    crossbar_cluster,
    flood,
    is_lossless,
    receive_in_order,
    relay_report,
    run_programs,
    send_some,
)
from tests.live.source_routed_protocol import ETHERTYPE, SourceRouteEndpoint, SourceRoutePlug, relative_route

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


async def ping(endpoint: SourceRouteEndpoint, _node: ProgramNode, peer: str, times: int) -> list[tuple[int, int]]:
    for number in range(1, times + 1):
        endpoint.send(peer)
        await endpoint.frames(number)
    return endpoint.firmware.came


async def pong(endpoint: SourceRouteEndpoint, _node: ProgramNode, peer: str, times: int) -> None:
    for number in range(1, times + 1):
        await endpoint.frames(number)
        endpoint.send(peer)


@pytest.mark.parametrize(
    "links", [("n1 s1:1", "n2 s1:8"), ("n1 s1:3", "s1:7 s2:2", "n2 s2:1")], ids=["one crossbar", "two crossbars"]
)
def test_two_hosts_exchange_frames_along_their_routes(links: tuple[str, ...]) -> None:
    times = 50
    with crossbar_cluster(*links).up() as cluster:
        programs: dict[str, Program] = {
            "n1": partial(ping, peer="n2", times=times),
            "n2": partial(pong, peer="n1", times=times),
        }
        outcome = run_programs(cluster, programs)
        assert outcome.results["n1"] == [(1, number) for number in range(1, times + 1)]
        assert is_lossless(cluster, outcome)
        seen = status(cluster.state).links
        assert all(link.exists and link.up for link in seen)
        assert all(link.forward.frames >= times and link.backward.frames >= times for link in seen)
        with cluster.cut("s1"):
            assert not any(link.up for link in status(cluster.state).links if "s1:" in link.link.name)


def test_frames_cross_the_now_topology_between_two_subclusters() -> None:
    with Cluster.now().up() as cluster:
        layout = cluster.state.layout
        first, last = layout.nodes[0].name, layout.nodes[-1].name
        programs: dict[str, Program] = {
            first: partial(ping, peer=last, times=5),
            last: partial(pong, peer=first, times=5),
        }
        with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, programs) as run:
            outcome = run.wait(TIMEOUT)
        assert outcome.results[first] == [(len(layout.nodes) - 1, number) for number in range(1, 6)]
        assert is_lossless(cluster, outcome)
        assert len(relay_report(cluster)["switches"]) == 40


@pytest.mark.parametrize(("rate", "size"), [("100mbit", 1000), (None, 6)], ids=["narrow output", "small at full speed"])
def test_four_senders_to_one_output_lose_no_frame_and_keep_their_order(rate: str | None, size: int) -> None:
    """Each sender's burst exceeds every buffer on the path; the rest waits in the NICs."""
    count = 4000
    senders = [f"n{number}" for number in range(2, 6)]
    links = [*(f"n{number} s1:{number}" for number in range(2, 6)), "n1 s1:1"]
    with crossbar_cluster(*links, **({"rate": rate} if rate else {})).up() as cluster:
        programs: dict[str, Program] = {sender: partial(flood, count=count, size=size) for sender in senders}
        receive = partial(receive_in_order, count=4 * count, senders=senders)
        outcome = run_programs(cluster, {**programs, "n1": receive})
        assert outcome.results["n1"] == [True] * 4
        assert is_lossless(cluster, outcome)
        stops = [link["forward"]["stops"] for name, link in relay_report(cluster)["links"].items() if "n1:" not in name]
        assert len(stops) == 4
        assert all(stops) or not rate, "at full speed the window limits the NICs instead of STOP"


async def send_to_unconnected_ports(endpoint: SourceRouteEndpoint, _node: ProgramNode) -> None:
    endpoint.send_along(relative_route(20))
    endpoint.send_along(relative_route(4), 2)
    endpoint.send_along(relative_route(1, 1, 1), 3)
    endpoint.send_along(b"", 4)
    endpoint.send("n2")


def test_frames_to_unconnected_ports_are_counted_and_do_not_block_others() -> None:
    with crossbar_cluster("n1 s1:1", "n2 s1:2").up() as cluster:
        outcome = run_programs(cluster, {"n1": send_to_unconnected_ports, "n2": partial(count_received, count=4)})
        assert outcome.results["n2"] == [1, 3]  # three with remaining route bytes
        counted = {cause: count for cause, count in relay_report(cluster)["switches"]["s1"].items() if count}
        assert counted == {"no_port": 1, "no_cable": 2, "route_used_up": 4}


def test_a_frame_corrupted_on_one_link_stays_corrupted_after_the_next_switch() -> None:
    rules = ["corrupt 1 nth(3)"]
    with crossbar_cluster("n1 s1:1", "n2 s2:1", "s1:3 s2:2", forward={"rules": rules}).up() as cluster:
        outcome = run_programs(cluster, {"n1": partial(send_some, count=5), "n2": partial(count_received, count=5)})
        assert outcome.results["n2"] == [4, 1]


async def round_trips(endpoint: SourceRouteEndpoint, node: ProgramNode | SimNode, peer: str) -> list[int]:
    """Return the durations of round trips of 1,000 bytes, in model ns."""
    now = node.now if isinstance(node, SimNode) else node.loop.now
    durations = []
    for number in range(1, 11):
        start = now()
        endpoint.send(peer, 1, 1000)
        await endpoint.frames(number)
        durations.append(now() - start)
    return durations


async def send_back(endpoint: SourceRouteEndpoint, _node: ProgramNode | SimNode, peer: str) -> None:
    for number in range(1, 11):
        await endpoint.frames(number)
        endpoint.send(peer, 1, 1000)


@pytest.mark.alone
def test_dilated_round_trips_through_switches_equal_the_simulations() -> None:
    factor = 2000
    layout = resolve(crossbar_cluster("n1 s1:3", "s1:7 s2:2", "n2 s2:1"))
    with Simulation(layout, SourceRoutePlug(layout)) as simulation:
        expected = simulation.spawn("n1", round_trips, "n2")
        simulation.spawn("n2", send_back, "n1")
        simulation.run()
    outcome = bring_up(Store(), slow_layout(layout, factor), name=f"slow-{os.getpid()}", origin="a test", lasting=False)
    with RunningCluster(Store(), outcome.state) as cluster:
        programs: dict[str, Program] = {"n1": partial(round_trips, peer="n2"), "n2": partial(send_back, peer="n1")}
        with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, programs, dilation=Dilation(factor, IDEAL)) as run:
            actual = run.wait(TIMEOUT).results["n1"]
    assert isinstance(actual, list)
    assert min(actual) >= min(expected.result()), "no round trip may be shorter than the simulation's"
    assert sorted(actual)[5] < 1.3 * min(expected.result()), "round trips must not be those of an Ethernet"


async def transfer(endpoint: emp.Endpoint, _node: ProgramNode) -> int:
    """Send 100,000 bytes from n1 to n2; return their number."""
    if endpoint.number:
        return (await endpoint.post_receive(0, 1, bytearray(100_000))).length
    return (await endpoint.post_send(1, 1, bytes(100_000))).length


def test_the_agent_of_a_shared_nic_obeys_stop_and_go() -> None:
    """A NIC sends nothing before it has received GO, so every received frame shows that the agent processes GO."""
    with crossbar_cluster("n1 s1:1", "n2 s1:2").up() as cluster:
        with agents(
            cluster,
            emp.plug(),
            EMP,
            {"n1": transfer, "n2": transfer},
            placement=Placement(split_driver=split_driver(), share_all=True),
        ) as run:
            outcome = run.wait(TIMEOUT)
        assert all(finding.grade is Grade.TRUSTED for finding in outcome.verdict.findings if finding.what == "NIC lost")
        assert outcome.results == {"n1": 100_000, "n2": 100_000}

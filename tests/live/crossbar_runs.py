"""Runs of numbered frames through Myrinet crossbars between real interfaces: clusters, programs and their reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from testbed.controller.runs.agents import agents
from testbed.controller.verdict.outcomes import JudgedOutcome
from testbed.controller.verdict.verdicts import Grade
from testbed.runtime.nodes.run_orders import Program, ProgramNode
from testbed.spec.elements import Link, Node, Switch
from tests.live.source_routed_protocol import ETHERTYPE, SourceRouteEndpoint, SourceRoutePlug, silent

TIMEOUT = 20.0  # seconds


def crossbar_cluster(*ends: str, **impairment: Any) -> Cluster:
    """Return a cluster with the given links, such as "n1 s1:1", where s1 is a Myrinet switch. impairment: that of the last
    link."""
    names = {end.partition(":")[0] for link in ends for end in link.split()}
    links = [Link(ends=link.split()) for link in ends[:-1]]
    return Cluster(
        name="myrinet",
        nodes=[Node(name=name) for name in sorted(names) if name.startswith("n")],
        switches=[Switch(name=name, kind="myrinet") for name in sorted(names) if name.startswith("s")],
        links=[*links, Link(ends=ends[-1].split(), **impairment)],
    )


def run_programs(cluster: RunningCluster, programs: Mapping[str, Program], timeout: float = TIMEOUT) -> JudgedOutcome:
    """Run these programs to their end; the NICs of other nodes stay silent."""
    layout = cluster.state.layout
    all_programs = {node.name: programs.get(node.name, silent) for node in layout.nodes}
    with agents(cluster, SourceRoutePlug(layout), ETHERTYPE, all_programs) as run:
        return run.wait(timeout)


def relay_report(cluster: RunningCluster) -> Mapping[str, Any]:
    report = relay_client.report(Store(), cluster.state)
    assert report is not None
    return report


def is_lossless(cluster: RunningCluster, outcome: JudgedOutcome) -> bool:
    """Return whether no frame was lost inside the emulator and every crossbar forwarded all it received."""
    lost = [finding for finding in outcome.verdict.findings if finding.what in ("NIC lost", "relay lost")]
    assert lost
    counts = [count for switch in relay_report(cluster)["switches"].values() for count in switch.values()]
    return all(finding.grade is Grade.TRUSTED for finding in lost) and not any(counts)


async def flood(endpoint: SourceRouteEndpoint, _node: ProgramNode, count: int, size: int) -> None:
    """Send n1 one frame; send the others back to back after its reply, when all senders are ready."""
    endpoint.send("n1", 1, size)
    await endpoint.frames(1)
    endpoint.send("n1", count - 1, size)


async def receive_in_order(
    endpoint: SourceRouteEndpoint, _node: ProgramNode, count: int, senders: Sequence[str]
) -> list[bool]:
    """Receive a total of `count` frames from nodes that run `flood`; return for each node whether they arrived in order."""
    await endpoint.frames(len(senders))
    for sender in senders:
        endpoint.send(sender)
    await endpoint.frames(count)
    arrived = endpoint.firmware.came
    by_sender: dict[int, list[int]] = {}
    for sender_number, number in arrived:
        by_sender.setdefault(sender_number, []).append(number)
    expected = list(range(1, count // len(senders) + 1))
    return [numbers == expected for numbers in by_sender.values()]


async def count_received(endpoint: SourceRouteEndpoint, _node: ProgramNode, count: int = 1) -> list[int]:
    await endpoint.frames(count)
    return [len(endpoint.firmware.came), len(endpoint.firmware.broken)]


async def send_some(endpoint: SourceRouteEndpoint, _node: ProgramNode, count: int, size: int = 100) -> None:
    endpoint.send("n2", count, size)

"""AM-II in the simulator and on real frames in namespaces: one description, host program and firmware."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

import pytest

from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.codec import ETHERTYPE
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.am2.plug import plug
from protocols.am2.settings import Settings
from testbed import Cluster
from testbed.controller.conformance.parity import differing_flows, fates_by_flow
from testbed.controller.runs.agents import agents
from testbed.fates.records import Record
from testbed.runtime.logs import read_log
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Link
from testbed.spec.elements import Node as ClusterNode

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 60.0  # seconds
SIZES = (0, 4, 600, 1400, 4097, 12_000)
ROUNDS = 6
ENDPOINTS = 3
"""Number of endpoints of each node, over two frames."""
PAGING = Settings(frames=2, channels=4)
SHORT, DATA, REPLY, TAG = 1, 2, 3, 77
LARGEST = max(SIZES)


class Node(Protocol):
    @property
    def name(self) -> str: ...


def content(source: int, sink: int, serial: int) -> bytes:
    size = SIZES[(source + sink + serial) % len(SIZES)]
    return (f"{source} {sink} {serial} ".encode() * (size // 4 + 1))[:size]


async def exchange(am: ActiveMessages, _node: Node) -> list[str]:
    """Exchange short, medium and bulk messages between all endpoints of equal index.

    Return the handled requests and replies, sorted, because active messages are unordered.
    """
    history: list[str] = []
    replies: list[int] = []
    bundle = am.allocate_bundle()
    others = [node for node in range(am.size) if node != am.node]

    def record(token: Token, serial: int, data: bytes | memoryview) -> None:
        digest = hashlib.sha256(data).hexdigest()
        history.append(f"{token.source} to {token.endpoint.name}, {serial}: {len(data)} bytes, {digest}")

    def on_short(token: Token, serial: int) -> None:
        record(token, serial, b"")
        token.reply(REPLY, serial)

    def on_data(token: Token, data: memoryview, serial: int) -> None:
        record(token, serial, data)
        token.reply(REPLY, serial)

    def on_reply(token: Token, serial: int) -> None:
        history.append(f"{token.source} has replied to {token.endpoint.name}, {serial}")
        replies.append(serial)

    for _ in range(ENDPOINTS):
        endpoint = bundle.allocate_endpoint()
        endpoint.tag = TAG
        endpoint.segment = bytearray(LARGEST * ROUNDS * am.size)
        for number, handler in ((SHORT, on_short), (DATA, on_data), (REPLY, on_reply)):
            endpoint.set_handler(number, handler)
        for slot, peer in enumerate(others):
            endpoint.map(slot, EndpointName(peer, endpoint.name.endpoint), TAG)
    for serial in range(ROUNDS):
        for endpoint in bundle.endpoints:
            for slot, peer in enumerate(others):
                message = content(am.node, peer, serial)
                if not message:
                    await endpoint.request(slot, SHORT, serial)
                elif len(message) <= am.max_medium:
                    await endpoint.request_medium(slot, DATA, message, serial)
                else:
                    offset = LARGEST * (ROUNDS * am.node + serial)
                    await endpoint.request_bulk(slot, DATA, message, offset, serial)
    expected = ENDPOINTS * ROUNDS * len(others)
    while len(replies) < expected or len(history) < 2 * expected:
        await bundle.wait()
        await bundle.poll()
    return sorted(history)


def simulate(description: Cluster, records: list[Record]) -> dict[str, list[str]]:
    with Simulation(description, plug(PAGING), log=records.append) as simulation:
        tasks = {name: simulation.spawn(name, exchange) for name in simulation.nodes}
        simulation.run(timeout=60_000_000_000)
        assert all(node.agent.firmware.counter_values()["unloaded"] for node in simulation.nodes.values())
        return {name: task.result() for name, task in tasks.items()}


def test_active_messages_have_the_same_history_on_a_direct_link() -> None:
    nodes = [ClusterNode(name=name) for name in ("n1", "n2")]
    description = Cluster(name="direct", nodes=nodes, links=[Link(ends=("n1", "n2"), datapath="direct")])
    expected = simulate(description, [])
    assert all(len(history) == 2 * ENDPOINTS * ROUNDS for history in expected.values())
    with (
        description.up() as cluster,
        agents(cluster, plug(PAGING), ETHERTYPE, {"n1": exchange, "n2": exchange}) as run,
    ):
        outcome = run.wait(TIMEOUT)
        assert outcome.results == expected
        assert all(report.counted["unloaded"] for report in outcome.reports.values())


def test_active_messages_have_the_same_history_and_every_flow_the_same_fates(tmp_path: Path) -> None:
    """The n-th frame of a flow has the same fate in both modes, even if its content differs."""
    description = Cluster.star(3, loss="5%", delay="1ms", seed=7)
    records: list[Record] = []
    expected = simulate(description, records)
    log = tmp_path / "fates.jsonl"
    with (
        description.up(fates=log) as cluster,
        agents(cluster, plug(PAGING), ETHERTYPE, {f"n{number}": exchange for number in (1, 2, 3)}) as run,
    ):
        outcome = run.wait(TIMEOUT)
        assert outcome.results == expected
        assert not any(report.lost for report in outcome.reports.values())
    simulated_fates, live_fates = fates_by_flow(records), fates_by_flow(read_log(log))
    differing, compared = differing_flows(simulated_fates, live_fates)
    assert not differing
    assert compared >= 5

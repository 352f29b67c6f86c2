"""EMP's complete firmware and host library in the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from protocols.core.profile import IDEAL, Profile
from protocols.emp.host import Endpoint, ReceiveResult, plug
from testbed.sim.recorder import CAPTURE
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.model import Description

WITH_COSTS = Profile(
    "round numbers", post=500, write_rate=1_000_000_000, translate=300, notice=200, doorbell=100, receive=2_000, ring=1_000,
    tick=500, send=1_500, transfer=200, show=300, fetch=800, fetch_rate=1_000_000_000, store=900,
    store_rate=1_000_000_000, receive_ring=64,
)  # fmt: skip


async def send(endpoint: Endpoint, node: SimNode, destinations: Sequence[int], size: int) -> int:
    """Send a message to each destination, all at once; return when all have been acknowledged."""
    for completion in [endpoint.post_send(peer, node.number, _content(node.number, size)) for peer in destinations]:
        await completion
    return node.now()


async def receive(endpoint: Endpoint, node: SimNode, sources: Sequence[int], size: int) -> list[ReceiveResult]:  # noqa: ARG001
    """Receive a message from each source."""
    buffers = [bytearray(size) for _ in sources]
    receives = [endpoint.post_receive(peer, peer, buffer) for peer, buffer in zip(sources, buffers, strict=True)]
    results = [await receive for receive in receives]
    assert buffers == [_content(peer, size) for peer in sources]
    return results


def _content(peer: int, size: int) -> bytes:
    return bytes([(peer + index) & 0xFF for index in range(size)])


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
@pytest.mark.parametrize("size", [0, 1, 1_400, 20_000])
def test_all_nodes_send_to_all_others_through_a_lossy_fat_tree(profile: Profile, size: int) -> None:
    cluster = Description.fat_tree(4, delay="2us", rate="1gbit", loss="2%", duplicate="1%", seed=size)
    with Simulation(cluster, plug(), profile=profile) as simulation:
        count = len(simulation.nodes)
        for node in simulation.nodes.values():
            peers = [number for number in range(count) if number != node.number]
            simulation.spawn(node.name, receive, peers, size)
            simulation.spawn(node.name, send, peers, size)
        simulation.run(timeout=60_000_000_000)
        assert all(not node.pending_work() for node in simulation.nodes.values())
        assert (
            sum(node.agent.firmware.counter_values()["messages_received"] for node in simulation.nodes.values())
            == 16 * 15
        )


def test_a_message_takes_longer_with_a_slower_nic() -> None:
    def elapsed_time(profile: Profile) -> int:
        with Simulation(Description.back_to_back(delay="1us", rate="1gbit"), plug(), profile=profile) as simulation:
            simulation.spawn("n2", receive, [0], 30_000)
            task = simulation.spawn("n1", send, [1], 30_000)
            simulation.run(timeout=1_000_000_000)
            return task.result()

    assert elapsed_time(IDEAL) < elapsed_time(Profile(receive=5_000)) < elapsed_time(Profile(receive=20_000))


def test_a_stalled_run_reports_the_pending_send_and_receive(tmp_path: Path) -> None:
    with Simulation(Description.star(3), plug(), folder=tmp_path) as simulation:
        simulation.cut(simulation.layout.links[1].name)
        simulation.spawn("n2", receive, [0], 100)
        simulation.spawn("n1", send, [1], 100)
        with pytest.raises(StalledError) as caught:
            simulation.run(timeout=1_000_000_000)
    text = str(caught.value)
    assert "send on n1 waits for the send to node 1, tag 0, 100 bytes" in text
    assert "n2, firmware: a receive from node 0, tag 0: no message has come" in text
    assert b"the cable is out" in (tmp_path / CAPTURE).read_bytes()

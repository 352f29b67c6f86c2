"""NICs of different MTUs on one network: a NIC drops a frame above its MTU, like an Ethernet interface, and reports it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocols.core.profile import IDEAL, Profile
from protocols.emp.host import Endpoint, plug
from testbed.sim.recorder import TRACE
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.elements import Nic, Node
from testbed.spec.model import Description

MILLISECOND = 1_000_000
SLOW = Profile("slow", receive=1_000, send=1_000)


def star_of_mtus(*mtus: int) -> Description:
    nodes = [Node(name=f"n{number}", nics=[Nic(mtu=mtu)]) for number, mtu in enumerate(mtus, 1)]
    return Description(**{**Description.star(len(mtus)).model_dump(exclude_defaults=True), "nodes": nodes})


async def send(endpoint: Endpoint, _node: SimNode, destination: int, size: int) -> None:
    await endpoint.send(destination, 1, bytes(size))


async def receive(endpoint: Endpoint, _node: SimNode, size: int) -> int:
    return (await endpoint.receive(0, 1, bytearray(size))).length


@pytest.mark.parametrize("profile", [IDEAL, SLOW], ids=["ideal", "slow"])
def test_a_frame_above_the_receivers_mtu_is_dropped_and_reported(profile: Profile, tmp_path: Path) -> None:
    with Simulation(star_of_mtus(9_000, 1_500, 9_000), plug(), profile=profile, folder=tmp_path) as simulation:
        large_mtu_receiver = simulation.spawn("n3", receive, 8_000)
        simulation.spawn("n1", send, 2, 8_000)
        simulation.run()
        assert large_mtu_receiver.result() == 8_000
        simulation.spawn("n2", receive, 8_000)
        simulation.spawn("n1", send, 1, 8_000)
        with pytest.raises(
            StalledError,
            match=r"n2, NIC: dropped [1-9][0-9]* frames? longer than the MTU of 1500 bytes allows \(longest",
        ):
            simulation.run(timeout=100 * MILLISECOND)
        nics = {name: node.nic for name, node in simulation.nodes.items()}
        assert nics["n2"].oversized > 0
        assert nics["n2"].received == nics["n3"].oversized == 0
    records = [json.loads(line) for line in (tmp_path / TRACE).read_text().splitlines()]
    dropping_nodes = [line["node"] for line in records if line.get("why") == "longer than the NIC takes"]
    assert dropping_nodes == ["n2"] * nics["n2"].oversized


def test_a_loss_is_reported_before_the_many_transfers_that_it_holds_up() -> None:
    with Simulation(star_of_mtus(9_000, 1_500), plug()) as simulation:
        for tag in range(2, 152):
            simulation.spawn("n1", receive_with_tag, 1, tag)
        simulation.spawn("n2", receive, 8_000)
        simulation.spawn("n1", send, 1, 8_000)
        with pytest.raises(StalledError) as raised:
            simulation.run(timeout=100 * MILLISECOND)
    assert "longer than the MTU of 1500 bytes allows" in str(raised.value)


async def receive_with_tag(endpoint: Endpoint, _node: SimNode, source: int, tag: int) -> None:
    await endpoint.receive(source, tag, bytearray(4))


def test_a_message_within_every_mtu_arrives() -> None:
    with Simulation(star_of_mtus(1_500, 9_000), plug()) as simulation:
        simulation.spawn("n1", send, 1, 8_000)
        task = simulation.spawn("n2", receive, 8_000)
        simulation.run()
        assert task.result() == 8_000

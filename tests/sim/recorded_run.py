"""Record a run of many programs under loss, in a separate process. Arguments: kind of record, folder, seed."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from pathlib import Path

from protocols.core.profile import Profile
from protocols.emp import host as emp
from testbed.engine.sources import source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description
from tests.sim.echo_and_flood import EchoEndpoint, EchoPlug

PROFILE = Profile("test", post=100, receive=700, ring=200, send=400, transfer=60, show=70, fetch=500, notice=30)


async def send_requests(endpoint: EchoEndpoint, node: SimNode, seed: int, nodes: int) -> None:
    rng = source(seed, node.name)
    for _ in range(20):
        await endpoint.request(
            (node.number + 1 + rng.below(nodes - 1)) % nodes,
            rng.word().to_bytes(8, "big") * (1 + rng.below(100)),
        )
        await node.compute(rng.below(5_000))


async def exchange_messages(endpoint: emp.Endpoint, node: SimNode, seed: int, nodes: int) -> None:
    """Exchange a message of some frames with every other node, in a random order."""
    rng = source(seed, node.name)
    peers = [number for number in range(nodes) if number != node.number]
    buffers = [bytearray(9_000) for _ in peers]
    transfers: list[Awaitable[object]] = [
        endpoint.post_receive(peer_number, 1, buffer) for peer_number, buffer in zip(peers, buffers, strict=True)
    ]
    rng.shuffle(peers)
    for peer_number in peers:
        transfers.append(endpoint.post_send(peer_number, 1, rng.word().to_bytes(8, "big") * (1 + rng.below(1_000))))
        await node.compute(rng.below(5_000))
    for transfer in transfers:
        await transfer


def record(folder: Path, seed: int, what: str = "tiny") -> None:
    cluster = Description.fat_tree(4, delay="2us", jitter="1us", rate="1gbit", loss="3%", duplicate="1%", seed=seed)
    plug, program = (emp.plug(), exchange_messages) if what == "emp" else (EchoPlug(timeout=1_000_000), send_requests)
    with Simulation(cluster, plug, profile=PROFILE, folder=folder) as simulation:
        for name in simulation.nodes:
            simulation.spawn(name, program, seed, len(simulation.nodes))
        simulation.run(timeout=10_000_000_000)


if __name__ == "__main__":
    record(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[1])

"""A run of many programs under loss, recorded: what a process of its own is started for. Arguments: folder, seed."""

from __future__ import annotations

import sys
from pathlib import Path

from tiny_agents import TinyEndpoint, TinyPlug

from protocols.core.profile import Profile
from testbed.engine.sources import source
from testbed.sim.node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description

PROFILE = Profile("test", post=100, receive=700, ring=200, send=400, transfer=60, show=70, fetch=500, notice=30)


async def ask_around(endpoint: TinyEndpoint, node: SimNode, seed: int, nodes: int) -> None:
    chance = source(seed, node.name)
    for _ in range(20):
        await endpoint.ask(
            (node.number + 1 + chance.below(nodes - 1)) % nodes,
            chance.word().to_bytes(8, "big") * (1 + chance.below(100)),
        )
        await node.compute(chance.below(5_000))


def record(folder: Path, seed: int) -> None:
    cluster = Description.fat_tree(4, delay="2us", jitter="1us", rate="1gbit", loss="3%", duplicate="1%", seed=seed)
    with Simulation(cluster, TinyPlug(timeout=1_000_000), profile=PROFILE, folder=folder) as simulation:
        for name in simulation.nodes:
            simulation.spawn(name, ask_around, seed, len(simulation.nodes))
        simulation.run(timeout=10_000_000_000)


if __name__ == "__main__":
    record(Path(sys.argv[1]), int(sys.argv[2]))

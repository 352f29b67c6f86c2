"""Cells per second of SSAM's complete library, traps and network in the simulation, compared with frames per second of EMP:
16 nodes on one switch, each of which sends to random others."""

import time

from benchmarks.engine.firmware import Setting, simulate
from protocols.ssam.host import Library
from protocols.ssam.plug import plug
from testbed.engine.sources import source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description

NODES = 16
EMP_MESSAGES, REQUESTS = 500, 1_000  # of each node; they take about the same time
SECOND = 1_000_000_000
COUNT = 1
EMP = Setting("star", NODES, "0%", EMP_MESSAGES, 1_000)


def emp_frames() -> float:
    """Return frames per second of CPU time."""
    return simulate(EMP).rate


def ssam_cells() -> float:
    """Return cells per second of CPU time: a request of 40 bytes and its acknowledgement are two."""
    cluster = Description.star(NODES, kind="atm", rate="10gbit", delay="1us")
    with Simulation(cluster, plug()) as simulation:
        handled = [0]
        for node in simulation.nodes.values():
            simulation.spawn(node.name, _exchange, handled)
        start = time.process_time()
        simulation.run(timeout=100 * SECOND)
        cpu_time = time.process_time() - start
        cells = sum(node.agent.firmware.counter_values()["cells_written"] for node in simulation.nodes.values())
        resent = sum(node.agent.firmware.counter_values()["resent"] for node in simulation.nodes.values())
    if handled[0] != NODES * REQUESTS or resent:
        raise AssertionError(f"{handled[0]} of {NODES * REQUESTS} requests were handled, {resent} were sent again")
    return cells / cpu_time


async def _exchange(library: Library, node: SimNode, handled: list[int]) -> None:
    def count(_source: int, _data: bytes) -> None:
        handled[0] += 1

    library.set_handler(COUNT, count)
    rng, data = source(1, node.name), bytes(40)
    for _ in range(REQUESTS):
        await library.request((node.number + 1 + rng.below(NODES - 1)) % NODES, COUNT, data)
    while library.pending_work() or handled[0] < NODES * REQUESTS:
        await library.poll()

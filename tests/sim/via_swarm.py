"""The swarm's cases of MPI over VIA: RDMA areas and descriptors so few that they wrap around and run out all the time.

A case is drawn as one of the message-passing swarm (`tests.sim.swarm`), with one or two ranks on a node, areas, depths and
messages that are registered on the fly. When it is over, credits are conserved: what each rank counts as written and sent
is what its peer counts as consumed and received; memory and descriptors are free again.

    python -m tests.sim.via_swarm 4711        run one case again, and shrink it if it fails
    python -m tests.sim.via_swarm 0 1000      a range of them
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast

from protocols.core.completion import Completion
from protocols.emp.host import Received
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import Envelope, MPIError
from protocols.mpi.via.endpoint import ViaEndpoint
from protocols.via.host import ViaNic, plug
from protocols.via.settings import Settings
from testbed.engine.sources import Source, source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.placement import with_ranks
from tests.sim import swarm
from tests.sim.swarm import LARGEST, PATIENCE, Subject, Took, check_node, payload, reuse
from tests.sim.swarm_faults import CALM, MICROSECOND, MILLISECOND, Violation, cut_and_mend, layout_of, unwrapped
from tests.sim.trials import Swarm

REST: Final = 400 * MILLISECOND
"""Virtual time in which acknowledgements, credits and commands that no program waits for have come."""


def _settings(chance: Source, eager: bool) -> dict[str, int]:  # noqa: ARG001  other protocols' depend on it
    timeout = chance.choice((200 * MICROSECOND, MILLISECOND, 5 * MILLISECOND))
    area = chance.choice((512, 2_048, 8_192, 32_768))
    window = chance.choice((1, 2, 16, 32))
    return {
        "timeout": timeout,
        "longest_timeout": timeout * chance.choice((1, 4, 32)),
        "window": window,
        "acknowledge": min(window, chance.choice((1, 8))),
        "area": area,
        "buffer": area // chance.choice((4, 8)),
        "depth": chance.choice((8, 12, 32)),
        "register_from": chance.choice((0, 60, 2_000)),
        "connect_all": chance.choice((0, 1)),
    }


VIA: Final = Subject("via", _settings, lambda settings: plug(Settings(**settings)))


@dataclass(frozen=True, slots=True)
class Case:
    """base: a case of the message-passing swarm, whose messages and `wild` are of ranks. per_node: ranks of a node.
    synchronous: one of so many messages is sent synchronously."""

    base: swarm.Case
    per_node: int
    synchronous: int


def draw(seed: int) -> Case:
    """The case of a seed."""
    base = swarm.draw(seed, VIA)
    chance = source(seed, "ranks")
    per_node = chance.choice((1, 1, 2))
    if per_node > 1:
        ranks = base.nodes * per_node
        messages = [replace(one, source=chance.below(ranks), sink=chance.below(ranks)) for one in base.messages]
        base = replace(base, messages=tuple(messages), wild=base.wild * per_node)
    return Case(base, per_node, chance.choice((3, 10, 1_000)))


async def send_all(nic: ViaNic, node: SimNode, case: Case, device: Device) -> None:
    await fine_connections(device)
    base = case.base
    chance = source(base.seed, f"sends of {node.name}")
    under_way: list[Completion[Envelope]] = []
    for number, message in enumerate(base.messages):
        if message.source != nic.number:
            continue
        memory = bytearray(payload(number, message.size))
        synchronous = number % case.synchronous == 1 and base.eager is False
        under_way.append(device.send(message.sink, 0, message.tag, memoryview(memory), synchronous))
        under_way[-1].add_callback(partial(reuse, memory))
        if not base.eager and len(under_way) >= base.outstanding:
            await fine(under_way.pop(0))
        if chance.random() < 0.3:
            await node.sleep(chance.below(300 * MICROSECOND))
    for completion in under_way:
        await fine(completion)


async def fine_connections(device: Device) -> None:
    try:
        await device.connect()
    except MPIError as error:
        raise Violation(f"not connected: {error}") from error


async def receive_all(nic: ViaNic, node: SimNode, case: Case, device: Device) -> list[Took]:
    base = case.base
    chance = source(base.seed, f"receives of {node.name}")
    mine = [message for message in base.messages if message.sink == nic.number]
    chance.shuffle(mine)
    wild = base.wild[nic.number]
    posted: list[tuple[Completion[Envelope], bytearray]] = []
    took: list[Took] = []
    for message in mine:
        if base.eager and len(posted) - len(took) >= base.outstanding:
            took.append(await taken(*posted[len(took)]))
        origin = message.source if wild == "no" else ANY_SOURCE
        tag = ANY_TAG if wild == "all" else message.tag
        buffer = bytearray(LARGEST)
        posted.append((device.receive(origin, 0, tag, memoryview(buffer)), buffer))
        if chance.random() < 0.3:
            await node.sleep(chance.below(500 * MICROSECOND))
    for one in posted[len(took) :]:
        took.append(await taken(*one))
    return took


async def taken(completion: Completion[Envelope], buffer: bytearray) -> Took:
    received = Received(*await fine(completion))
    return Took(buffer, received, bytes(buffer[: received.length]))


async def fine(completion: Completion[Envelope]) -> Envelope:
    """Wait for a completion that must not fail. Raises Violation if it does."""
    try:
        return await completion
    except MPIError as error:
        raise Violation(f"{completion} failed: {error}") from error


@unwrapped()
def run(case: Case, patience: int = PATIENCE) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation, at the latest after `patience` ns on a healed network."""
    base = case.base
    layout = layout_of(base.shape, base.nodes)
    layout = with_ranks(layout, case.per_node, {node.name: 1 for node in layout.nodes})
    names = [link.name for link in layout.links]
    with Simulation(layout, VIA.plug(dict(base.settings)), seed=base.seed) as simulation:
        for name, impairment in zip(names, base.links, strict=True):
            simulation.change(name, impairment)
        endpoints = [ViaEndpoint(cast(ViaNic, node.endpoint)) for node in simulation.nodes.values()]
        devices = [Device(endpoint) for endpoint in endpoints]
        receivers = []
        for name, device in zip(simulation.nodes, devices, strict=True):
            simulation.spawn(name, send_all, case, device)
            receivers.append(simulation.spawn(name, receive_all, case, device))
        cut_and_mend(simulation, names, base.cuts)
        simulation.run_until(base.until)
        for name in names:
            simulation.mend(name)
            simulation.change(name, CALM)
        try:
            simulation.run(timeout=patience)
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error
        for number, task in enumerate(receivers):
            check_node(base, number, task.result())
        simulation.run_until(simulation.now() + REST)
        check_rest(list(simulation.nodes.values()), endpoints)
        rows: Counter[str] = Counter()
        for node in simulation.nodes.values():
            rows.update(node.agent.firmware.counted())
        return rows


def check_rest(nodes: Sequence[SimNode], endpoints: Sequence[ViaEndpoint]) -> None:
    """Check that nothing is under way, leaked or lost between ranks. Raises Violation."""
    for node, endpoint in zip(nodes, endpoints, strict=True):
        nic = cast(ViaNic, node.endpoint)
        if left := [*nic.waiting(), *node.agent.firmware.waiting()]:
            raise Violation(f"{node.name} is not done: {left}")
        if node.agent.firmware.deadline is not None:
            raise Violation(f"{node.name}: nothing is under way, and a timer runs")
        if nic.registered != 2 * len(endpoint.pairs):
            raise Violation(f"{node.name} leaks memory: {nic.registered} for {len(endpoint.pairs)} connections")
        posted = sum(pair.depth for pair in endpoint.pairs.values())
        if nic.settings.slots - nic.free != posted + 2:  # a command waits for requests, one for errors
            raise Violation(f"{node.name} leaks descriptors: {nic.free} are free, {posted} are posted")
        for pair in endpoint.pairs.values():
            back = endpoints[pair.peer].pairs[endpoint.rank]
            if (pair.sent_parts, pair.written) != (back.received_parts, back.consumed):
                raise Violation(f"{node.name} to rank {pair.peer}: credits are lost, or there are too many")


def smaller(case: Case) -> Iterator[Case]:
    """Yield reduced cases, the largest reductions first."""
    for base in swarm.smaller(case.base):
        yield replace(case, base=base)


SWARM: Final = Swarm("python -m tests.sim.via_swarm", draw, run, smaller)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))

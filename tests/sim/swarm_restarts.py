"""The swarm's second kind of case: NICs start again in the middle, and messages are given up.

Then not everything can arrive: a message that was under way may be returned to its sender, whether it had arrived or not.
What must hold: nothing arrives twice at one incarnation, what arrives is right, whatever is posted ends (with its message,
or with an error) or waits for a message that was never received, and once all is calm every node can talk to every other.

    python tests/sim/swarm_restarts.py 4711
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

from swarm import (
    CALM,
    EMP,
    LARGEST,
    MICROSECOND,
    MILLISECOND,
    PATIENCE,
    Case,
    Matching,
    Violation,
    draw,
    layout_of,
    payload,
    say,
)

from protocols.emp import codec
from protocols.emp import host as emp
from testbed.engine.sources import Source, source
from testbed.errors import TestbedError
from testbed.sim.node import SimNode
from testbed.sim.simulation import Simulation

CALM_TAG = 1 << 20
"""Of the messages that go once all is calm."""


async def send_some(endpoint: Matching, node: SimNode, case: Case) -> None:
    chance = source(case.seed, f"sends of {node.name}")
    for number, message in enumerate(case.messages):
        if message.source == node.number:
            try:
                # The tag says which message it is, so that one that comes twice is seen.
                endpoint.post_send(message.sink, number, payload(number, message.size))
            except emp.DescriptorsExhaustedError:
                return
            await node.sleep(chance.below(600 * MICROSECOND))


async def receive_some(endpoint: Matching, node: SimNode, case: Case, took: list[int]) -> None:
    """Until nothing comes any more: the program ends with the faults."""
    while True:
        buffer = bytearray(LARGEST)
        try:
            received = await endpoint.post_receive(emp.ANY_SOURCE, emp.ANY_TAG, buffer)
        except emp.EmpError:
            continue  # its sender has started again, or has given up
        number = received.tag
        if number >= CALM_TAG:
            continue
        message = case.messages[number]
        if (message.source, message.sink) != (received.source, node.number):
            raise Violation(f"{node.name}: message {number} ({message}) came as {received}")
        if bytes(buffer[: received.length]) != payload(number, message.size):
            raise Violation(f"{node.name}: message {number} came with other bytes")
        if number in took:
            raise Violation(f"{node.name}: message {number} came twice")
        took.append(number)


async def talk(endpoint: Matching, node: SimNode, nodes: int) -> None:
    """One message to and from everybody else."""
    others = [number for number in range(nodes) if number != node.number]
    buffers = [bytearray(8) for _ in others]
    receives = [endpoint.post_receive(other, CALM_TAG + other, one) for other, one in zip(others, buffers, strict=True)]
    for send in [endpoint.post_send(other, CALM_TAG + node.number, bytes([node.number] * 8)) for other in others]:
        await send
    for other, receive, buffer in zip(others, receives, buffers, strict=True):
        await receive
        if bytes(buffer) != bytes([other] * 8):
            raise Violation(f"{node.name}: {other}'s message has other bytes")


def confuse(simulation: Simulation, chance: Source) -> None:
    """A NIC gets acknowledgements of what it has not sent, from somebody who keeps to the format, and its host rings for
    descriptors that it has not written."""
    one = chance.choice(list(simulation.nodes.values()))
    peer = chance.choice([node for node in simulation.nodes.values() if node is not one])
    for number in range(4):
        message = chance.choice((0, 1 << 30)) + number
        one.nic.receive(
            simulation.now(),
            codec.pack_frame(
                one.adapter.address, peer.adapter.address, codec.TYPE_ACK, 0, 3, one.adapter.incarnation,
                peer.adapter.incarnation, message, 3 * chance.below(1 << 20), codec.STATUS_OK,
            ),
        )  # fmt: skip
    for index in (chance.below(640), 640 + chance.below(1000)):
        one.agent.firmware.ring(simulation.now(), index)


def run(seed: int) -> Counter[str]:
    """A case; how often each row of the firmware's state table was taken. Raises Violation."""
    case = draw(seed)
    settings = {**dict(case.settings), "give_up": 8 * dict(case.settings)["timeout"], "held": 640}
    chance = source(seed, "restarts")
    layout = layout_of(case.shape, case.nodes)
    rows: Counter[str] = Counter()
    with Simulation(layout, EMP.plug(settings), seed=seed) as simulation:
        for link, impairment in zip(layout.links, case.links, strict=True):
            simulation.change(link.name, impairment)
        programs = []
        for node in layout.nodes:
            programs.append(simulation.spawn(node.name, send_some, case))
            programs.append(simulation.spawn(node.name, receive_some, case, []))
        for when in sorted(chance.below(case.until) for _ in range(1 + chance.below(4))):
            simulation.run_until(when)
            confuse(simulation, chance)
            again = chance.choice(layout.nodes).name
            rows.update(simulation.nodes[again].agent.firmware.counted())
            simulation.restart(again)
            programs.append(simulation.spawn(again, receive_some, case, []))
            programs.append(simulation.spawn(again, send_some, replace(case, messages=case.messages[:0])))
        simulation.run_until(case.until)
        for link in layout.links:
            simulation.change(link.name, CALM)
        # Long enough for what is left to arrive, or to be given up; then the programs' receives go with their NICs.
        simulation.run_until(case.until + 20 * settings["give_up"] + 20 * settings["longest_timeout"])
        for program in programs:
            if program.done:
                program.result()
            program.cancel()
        simulation.run_until(simulation.now() + MILLISECOND)
        for node in layout.nodes:
            rows.update(simulation.nodes[node.name].agent.firmware.counted())
            simulation.restart(node.name)
        for node in layout.nodes:
            simulation.spawn(node.name, talk, case.nodes)
        try:
            simulation.run(timeout=PATIENCE)
        except TestbedError as error:
            raise Violation(f"nobody is heard any more: {error}") from error
        for node in layout.nodes:
            rows.update(simulation.nodes[node.name].agent.firmware.counted())
    return rows


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[-1]) + (len(sys.argv) == 2)
    total: Counter[str] = Counter()
    for number in range(first, last):
        try:
            total.update(run(number))
        except Violation as violation:
            say(f"{number}: {violation}")
    for row, count in sorted(total.items()):
        say(f"{count:>12,}  {row}")

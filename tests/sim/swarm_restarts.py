"""The swarm's second kind of case: NICs restart during the traffic, and messages are given up.

Then not everything can arrive: a message in flight may be returned to its sender, whether it has arrived or not.
What must hold: nothing arrives twice, not at two incarnations of a NIC either, what arrives is right, whatever is posted
ends (with its message, or with an error) or waits for a message that was never received, and once all is calm every node can
talk to every other: as they are, where nothing is given up; where messages may be, once all NICs have started again.

    python -m tests.sim.swarm_restarts 4711
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from functools import partial

from protocols.core.firmware import FIRST, Adapter, Agent, Nic
from protocols.emp import codec
from protocols.emp import host as emp
from testbed.controller.conformance.exchanges import reuse
from testbed.controller.conformance.message_swarm import MAX_SIZE, TIMEOUT, Case, payload
from testbed.controller.conformance.network_faults import DELAY_ONLY, MICROSECOND, MILLISECOND, layout_of
from testbed.controller.conformance.trials import Violation, print_line
from testbed.engine.sources import Source, source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from tests.sim.swarm import EMP, Matching, draw, fine

CALM_TAG = 1 << 20
"""Tag of the messages that are sent when all faults are over; a second attempt has the next tag."""

LATER = 700_000
"""Added to incarnations where they are times instead of counts, and no NIC assumes its peers' incarnations."""

Calm = set[tuple[int, int]]
"""Pairs of (source, attempt) of the messages that a node has received since all faults are over."""


async def send_some(endpoint: Matching, node: SimNode, case: Case) -> None:
    rng = source(case.seed, f"sends of {node.name}")
    for number, message in enumerate(case.messages):
        if message.source == node.number:
            memory = bytearray(payload(number, message.size))
            try:
                # The tag identifies the message, so that duplicates are detected.
                endpoint.post_send(message.sink, number, memory).add_callback(partial(reuse, memory))
            except emp.DescriptorsExhaustedError:
                return
            await node.sleep(rng.below(600 * MICROSECOND))


async def receive_some(endpoint: Matching, node: SimNode, case: Case, taken_numbers: list[int], calm: Calm) -> None:
    """Receive during this incarnation. taken_numbers: messages received by all incarnations of this NIC."""
    rng = source(case.seed, f"receives of {node.name}")
    while True:
        buffer = bytearray(MAX_SIZE)
        try:
            envelope = await receive(endpoint, node, rng, buffer)
        except emp.EmpError:
            continue  # its sender has restarted, or has given up
        number = envelope.tag
        if number >= CALM_TAG:
            attempt = (envelope.source, number - CALM_TAG)
            if bytes(buffer[: envelope.length]) != bytes([envelope.source] * 8) or attempt in calm:
                raise Violation(f"{node.name}: {envelope.source}'s message is a different one, or was received twice")
            calm.add(attempt)
            continue
        message = case.messages[number]
        if (message.source, message.sink) != (envelope.source, node.number):
            raise Violation(f"{node.name}: message {number} ({message}) came as {envelope}")
        if bytes(buffer[: envelope.length]) != payload(number, message.size):
            raise Violation(f"{node.name}: message {number} came with other bytes")
        if number in taken_numbers:
            raise Violation(f"{node.name}: message {number} was received twice")
        taken_numbers.append(number)


async def receive(endpoint: Matching, node: SimNode, rng: Source, buffer: bytearray) -> emp.ReceiveResult:
    """The next message, at once or in two steps: it is claimed by a probe, and received after a while."""
    if rng.random() < 0.5:
        return await endpoint.post_receive(emp.ANY_SOURCE, emp.ANY_TAG, buffer)
    probe_result = await endpoint.post_probe(emp.ANY_SOURCE, emp.ANY_TAG, claim=True)
    assert probe_result is not None
    await node.sleep(rng.choice((0, 2 * MILLISECOND, 50 * MILLISECOND)))
    return await endpoint.post_claimed(probe_result, buffer)


async def talk(endpoint: Matching, node: SimNode, nodes: int) -> None:
    """Send a message to every other node; the first to a peer whose restart is not yet known is returned and sent
    again."""
    peers = [number for number in range(nodes) if number != node.number]
    send_list = [endpoint.post_send(peer, CALM_TAG, bytes([node.number] * 8)) for peer in peers]
    for peer, send in zip(peers, send_list, strict=True):
        try:
            await send
        except emp.EmpError:
            await fine(endpoint.post_send(peer, CALM_TAG + 1, bytes([node.number] * 8)))


async def begin_anew(endpoint: Matching, node: SimNode, nodes: int, calm: Calm) -> None:
    """Exchange a message with every other node between NICs without memory of earlier runs, all receives posted at
    once."""
    peers = [number for number in range(nodes) if number != node.number]
    buffers = [bytearray(8) for _ in peers]
    receives = [endpoint.post_receive(peer, CALM_TAG, buffer) for peer, buffer in zip(peers, buffers, strict=True)]
    for send in [endpoint.post_send(peer, CALM_TAG, bytes([node.number] * 8)) for peer in peers]:
        await fine(send)
    for peer, receive, buffer in zip(peers, receives, buffers, strict=True):
        await fine(receive)
        if bytes(buffer) != bytes([peer] * 8):
            raise Violation(f"{node.name}: {peer}'s message has other bytes")
        calm.add((peer, 0))


def confuse(simulation: Simulation, rng: Source, earlier: int) -> None:
    """Send a NIC acknowledgements of messages that it has not sent, and data from former or unknown incarnations, all
    well-formed; ring its host's doorbell for unwritten descriptors.

    earlier: number added to the adapters' incarnations.
    """
    victim = rng.choice(list(simulation.nodes.values()))
    peer = rng.choice([node for node in simulation.nodes.values() if node is not victim])
    destination, source_address = victim.adapter.address, peer.adapter.address
    own_incarnation, peer_incarnation = victim.adapter.incarnation + earlier, peer.adapter.incarnation + earlier
    former_incarnation = peer_incarnation - 1 if peer.adapter.incarnation > FIRST else 0
    for incarnation in (0, former_incarnation):
        data = codec.pack_frame(
            destination,
            source_address,
            codec.TYPE_DATA,
            0,
            3,
            incarnation,
            own_incarnation,
            1 << 30,
            1,
            codec.STATUS_OK,
            b"x",
        )
        victim.nic.receive(simulation.now(), data)
    for number in (0, 1, 2, 3, *[rng.below(100) for _ in range(40)]):
        message, frame = rng.choice((0, 1 << 30)) + number, 3 * (1 + rng.below(1 << 20))
        acknowledgement = codec.pack_frame(
            destination,
            source_address,
            codec.TYPE_ACK,
            0,
            3,
            own_incarnation,
            peer_incarnation,
            message,
            frame,
            codec.STATUS_OK,
        )
        victim.nic.receive(simulation.now(), acknowledgement)
    for index in (rng.below(640), 640 + rng.below(1000)):
        victim.agent.firmware.on_doorbell(simulation.now(), index)


def run(seed: int) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation."""
    case = draw(seed)
    rng = source(seed, "restarts")
    timeout = dict(case.settings)["timeout"]
    settings = {**dict(case.settings), "give_up": rng.choice((0, 2 * timeout, 8 * timeout)), "held": 640}
    earlier = rng.choice((0, LATER))
    case = replace(
        case,
        messages=tuple([message if rng.below(4) else replace(message, size=MAX_SIZE) for message in case.messages]),
    )
    emp_plug = EMP.plug(settings)

    def plug(adapter: Adapter, nic: Nic) -> Agent:
        return emp_plug(adapter.with_incarnation(adapter.incarnation + earlier), nic)

    layout = layout_of(case.shape, case.nodes)
    rows: Counter[str] = Counter()
    with Simulation(layout, plug, seed=seed) as simulation:
        for link, impairment in zip(layout.links, case.links, strict=True):
            simulation.change(link.name, impairment)
        taken_numbers: dict[str, list[int]] = {node.name: [] for node in layout.nodes}
        calm: dict[str, Calm] = {node.name: set() for node in layout.nodes}
        programs = []
        for node in layout.nodes:
            programs.append(simulation.spawn(node.name, send_some, case))
            programs.append(simulation.spawn(node.name, receive_some, case, taken_numbers[node.name], calm[node.name]))
        confuse(simulation, rng, earlier)
        for time in sorted(rng.below(case.until) for _ in range(1 + rng.below(4))):
            simulation.run_until(time)
            confuse(simulation, rng, earlier)
            restarted = rng.choice(layout.nodes).name
            rows.update(simulation.nodes[restarted].agent.firmware.counter_values())
            simulation.restart(restarted)
            programs.append(simulation.spawn(restarted, receive_some, case, taken_numbers[restarted], calm[restarted]))
        simulation.run_until(case.until)
        for link in layout.links:
            simulation.change(link.name, DELAY_ONLY)
        # Long enough for what is left to arrive, or to be given up.
        simulation.run_until(case.until + 160 * timeout + 20 * settings["longest_timeout"])
        if settings["give_up"]:
            # A receiver hears that a message was given up when its sender sends the next one: a receive that such a message
            # has got waits until then, perhaps forever. So these cases only ask whether NICs that start again are heard.
            for node in layout.nodes:
                rows.update(simulation.nodes[node.name].agent.firmware.counter_values())
                simulation.restart(node.name)
            conversations = [
                simulation.spawn(node.name, begin_anew, case.nodes, calm[node.name]) for node in layout.nodes
            ]
        else:
            conversations = [simulation.spawn(node.name, talk, case.nodes) for node in layout.nodes]
        simulation.run_until(simulation.now() + TIMEOUT)
        for program in [*programs, *conversations]:
            if program.done:
                program.result()
        all_numbers = set(range(case.nodes))
        for node, conversation in zip(layout.nodes, conversations, strict=True):
            if not conversation.done:
                raise Violation(f"{node.name} is not heard any more: {simulation.nodes[node.name].pending_work()}")
            if {peer for peer, _ in calm[node.name]} != all_numbers - {simulation.nodes[node.name].number}:
                raise Violation(f"{node.name} hears only {calm[node.name]}")
        for node in layout.nodes:
            rows.update(simulation.nodes[node.name].agent.firmware.counter_values())
    return rows


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[-1]) + (len(sys.argv) == 2)
    total: Counter[str] = Counter()
    for number in range(first, last):
        try:
            total.update(run(number))
        except Violation as violation:
            print_line(f"{number}: {violation}")
    for row, count in sorted(total.items()):
        print_line(f"{count:>12,}  {row}")

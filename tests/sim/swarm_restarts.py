"""Swarm of EMP under restarts: NICs restart during the traffic, one after a report of its crash, and senders give up
messages.

A message in flight may be returned to its sender, whether it has arrived or not. No message may arrive twice, not at two
incarnations of a NIC either, nor with wrong contents. Every posted operation completes, with its message or an error, or
waits for a message that was never received. After the faults every node can exchange messages with every other one: at once
where no message is given up, otherwise after a restart of all NICs.

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
from tests.sim.swarm import EMP, Matching, await_success, draw

FINAL_TAG = 1 << 20
"""Tag of the messages that are sent after all faults; a second attempt has the next tag."""

INCARNATION_OFFSET = 700_000
"""Added to the incarnations in cases where, as with times, no NIC presumes its peers' first incarnation."""

FinalMessages = set[tuple[int, int]]
"""Pairs of (source, attempt) of the messages that a node has received after all faults."""


async def send_messages(endpoint: Matching, node: SimNode, case: Case) -> None:
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


async def receive_messages(
    endpoint: Matching, node: SimNode, case: Case, received_numbers: list[int], final: FinalMessages
) -> None:
    """Receive during this incarnation. received_numbers: messages received by all incarnations of this NIC."""
    rng = source(case.seed, f"receives of {node.name}")
    while True:
        buffer = bytearray(MAX_SIZE)
        try:
            envelope = await receive(endpoint, node, rng, buffer)
        except emp.EmpError:
            continue  # its sender has restarted, or given up the message
        number = envelope.tag
        if number >= FINAL_TAG:
            attempt = (envelope.source, number - FINAL_TAG)
            if bytes(buffer[: envelope.length]) != bytes([envelope.source] * 8) or attempt in final:
                raise Violation(f"{node.name}: {envelope.source}'s message has other bytes, or was received twice")
            final.add(attempt)
            continue
        message = case.messages[number]
        if (message.source, message.sink) != (envelope.source, node.number):
            raise Violation(f"{node.name}: message {number} ({message}) arrived as {envelope}")
        if bytes(buffer[: envelope.length]) != payload(number, message.size):
            raise Violation(f"{node.name}: message {number} arrived with other bytes")
        if number in received_numbers:
            raise Violation(f"{node.name}: message {number} was received twice")
        received_numbers.append(number)


async def receive(endpoint: Matching, node: SimNode, rng: Source, buffer: bytearray) -> emp.ReceiveResult:
    """Receive the next message, with a receive or with a probe that claims it and a later receive."""
    if rng.random() < 0.5:
        return await endpoint.post_receive(emp.ANY_SOURCE, emp.ANY_TAG, buffer)
    probe_result = await endpoint.post_probe(emp.ANY_SOURCE, emp.ANY_TAG, claim=True)
    assert probe_result is not None
    await node.sleep(rng.choice((0, 2 * MILLISECOND, 50 * MILLISECOND)))
    return await endpoint.post_claimed(probe_result, buffer)


async def send_to_all(endpoint: Matching, node: SimNode, nodes: int) -> None:
    """Send a message to every other node; the first one to a peer whose restart is not yet known is returned and
    resent."""
    peers = [number for number in range(nodes) if number != node.number]
    send_list = [endpoint.post_send(peer, FINAL_TAG, bytes([node.number] * 8)) for peer in peers]
    for peer, send in zip(peers, send_list, strict=True):
        try:
            await send
        except emp.EmpError:
            await await_success(endpoint.post_send(peer, FINAL_TAG + 1, bytes([node.number] * 8)))


async def exchange_after_restart(endpoint: Matching, node: SimNode, nodes: int, final: FinalMessages) -> None:
    """Exchange a message with every other node after a restart of all NICs, with all receives posted at once."""
    peers = [number for number in range(nodes) if number != node.number]
    buffers = [bytearray(8) for _ in peers]
    receives = [endpoint.post_receive(peer, FINAL_TAG, buffer) for peer, buffer in zip(peers, buffers, strict=True)]
    for send in [endpoint.post_send(peer, FINAL_TAG, bytes([node.number] * 8)) for peer in peers]:
        await await_success(send)
    for peer, receive, buffer in zip(peers, receives, buffers, strict=True):
        await await_success(receive)
        if bytes(buffer) != bytes([peer] * 8):
            raise Violation(f"{node.name}: {peer}'s message has other bytes")
        final.add((peer, 0))


def inject_stale_frames(simulation: Simulation, rng: Source, offset: int) -> None:
    """Send a NIC well-formed acknowledgements of messages that it has not sent, and data of former or unknown
    incarnations; ring its doorbells for unwritten descriptors, and doorbells that it does not have.

    offset: number added to the adapters' incarnations.
    """
    victim = rng.choice(list(simulation.nodes.values()))
    peer = rng.choice([node for node in simulation.nodes.values() if node is not victim])
    destination, source_address = victim.adapter.address, peer.adapter.address
    own_incarnation, peer_incarnation = victim.adapter.incarnation + offset, peer.adapter.incarnation + offset
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
        # Between those of cancellations and those that no NIC has are the reports of crashes.
        number = index if index < 2 * 640 else index + len(simulation.nodes)
        victim.agent.firmware.on_doorbell(simulation.now(), number)


def report_crash(simulation: Simulation, crashed: str) -> None:
    """Report a node's crash to all other nodes, as a launcher does."""
    for name, node in simulation.nodes.items():
        if name != crashed:
            host = node.agent.host
            assert isinstance(host, emp.Endpoint)
            host.report_crash(simulation.nodes[crashed].number)


def run(seed: int) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation."""
    case = draw(seed)
    rng, reported = source(seed, "restarts"), source(seed, "reported crashes")
    timeout = dict(case.settings)["timeout"]
    settings = {**dict(case.settings), "give_up": rng.choice((0, 2 * timeout, 8 * timeout)), "held": 640}
    offset = rng.choice((0, INCARNATION_OFFSET))
    case = replace(
        case,
        messages=tuple([message if rng.below(4) else replace(message, size=MAX_SIZE) for message in case.messages]),
    )
    emp_plug = EMP.plug(settings)

    def plug(adapter: Adapter, nic: Nic) -> Agent:
        return emp_plug(adapter.with_incarnation(adapter.incarnation + offset), nic)

    layout = layout_of(case.shape, case.nodes)
    rows: Counter[str] = Counter()
    with Simulation(layout, plug, seed=seed) as simulation:
        for link, impairment in zip(layout.links, case.links, strict=True):
            simulation.change(link.name, impairment)
        received_numbers: dict[str, list[int]] = {node.name: [] for node in layout.nodes}
        final: dict[str, FinalMessages] = {node.name: set() for node in layout.nodes}
        programs = []
        for node in layout.nodes:
            programs.append(simulation.spawn(node.name, send_messages, case))
            programs.append(
                simulation.spawn(node.name, receive_messages, case, received_numbers[node.name], final[node.name])
            )
        inject_stale_frames(simulation, rng, offset)
        restarts = [(rng.below(case.until), False) for _ in range(1 + rng.below(4))]
        for time, is_reported in sorted([*restarts, (reported.below(case.until), True)]):
            simulation.run_until(time)
            if is_reported:
                restarted = reported.choice(layout.nodes).name
                report_crash(simulation, restarted)
            else:
                inject_stale_frames(simulation, rng, offset)
                restarted = rng.choice(layout.nodes).name
            rows.update(simulation.nodes[restarted].agent.firmware.counter_values())
            simulation.restart(restarted)
            programs.append(
                simulation.spawn(restarted, receive_messages, case, received_numbers[restarted], final[restarted])
            )
        simulation.run_until(case.until)
        for link in layout.links:
            simulation.change(link.name, DELAY_ONLY)
        # Long enough for the remaining messages to arrive, or to be given up.
        simulation.run_until(case.until + 160 * timeout + 20 * settings["longest_timeout"])
        if settings["give_up"]:
            # A receiver learns that a message was given up with the sender's next one: a receive that was matched to such a
            # message waits until then, perhaps forever. So these cases only check communication after a restart of all NICs.
            for node in layout.nodes:
                rows.update(simulation.nodes[node.name].agent.firmware.counter_values())
                simulation.restart(node.name)
            exchanges = [
                simulation.spawn(node.name, exchange_after_restart, case.nodes, final[node.name])
                for node in layout.nodes
            ]
        else:
            exchanges = [simulation.spawn(node.name, send_to_all, case.nodes) for node in layout.nodes]
        simulation.run_until(simulation.now() + TIMEOUT)
        for program in [*programs, *exchanges]:
            if program.done:
                program.result()
        all_numbers = set(range(case.nodes))
        for node, exchange in zip(layout.nodes, exchanges, strict=True):
            if not exchange.done:
                raise Violation(f"{node.name} cannot exchange messages: {simulation.nodes[node.name].pending_work()}")
            if {peer for peer, _ in final[node.name]} != all_numbers - {simulation.nodes[node.name].number}:
                raise Violation(f"{node.name} has only received {final[node.name]}")
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

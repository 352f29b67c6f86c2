"""Checks of messages, through MPI's device: self-sends, wildcards, cancelled receives, truncation, frames and deadlines.

A sentence above each cites what it demands: MPI 4.1 for messages, the interface of firmware for frames and time.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from protocols.core.firmware import FIRST
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device, SendCompletion
from protocols.mpi.mpi_errors import CANCELLED, ERR_PROC_FAILED, ERR_TRUNCATE, Envelope, MPIError
from testbed.controller.conformance.candidate import TIMEOUT, Candidate, converse
from testbed.controller.conformance.exchanges import GUARD, UNTOUCHED, reuse
from testbed.controller.conformance.network_faults import MICROSECOND, MILLISECOND, SECOND
from testbed.controller.conformance.trials import Violation, judged
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Nic, Node
from testbed.spec.model import Description

MTUS: Final = (600, 1_500, 9_000)
USUAL: Final = 1_500
"""MTU that every protocol takes: Ethernet's."""
RESTARTS: Final = (100 * MICROSECOND, MILLISECOND, 5 * MILLISECOND)
"""Virtual times of restarts. At 100 Mbit/s, 100,000 bytes take 8 ms: at the first a long message has at most been offered,
at the others a part of it is there."""
LATE: Final = 50 * MILLISECOND
"""Virtual time after which everything sent has arrived."""


class Buffer:
    """Buffer of a receive, between guards. completion: of the receive."""

    def __init__(self, device: Device, source: int, tag: int, size: int, context: int = 0) -> None:
        self._memory = bytearray([UNTOUCHED]) * (size + 2 * GUARD)
        self.completion: Final = device.receive(source, context, tag, memoryview(self._memory)[GUARD : GUARD + size])
        self._end = GUARD + size

    @property
    def content(self) -> bytes:
        """Bytes of the buffer. Raises Violation if something beside it has been written to."""
        before, behind = self._memory[:GUARD], self._memory[self._end :]
        if set(before + behind) != {UNTOUCHED}:
            raise Violation("bytes beside the buffer of a receive have been written to")
        return bytes(self._memory[GUARD : self._end])

    async def expect(self, source: int, tag: int, data: bytes) -> None:
        """Wait for this message. Raises Violation if another one comes."""
        envelope = await self.completion
        expected = Envelope(source, tag, len(data))
        if envelope != expected:
            raise Violation(f"instead of the message {expected} came {envelope}")
        if self.content[: len(data)] != data:
            raise Violation(f"the message {expected} has other bytes than were sent")
        if set(self.content[len(data) :]) - {UNTOUCHED}:
            raise Violation(f"more bytes than those of the message {expected} have been written")


def content(number: int, size: int) -> bytes:
    """Return the content of a message; contents differ as far as their size allows."""
    return bytes((number * 31 + at * at // 7 + at) & 0xFF for at in range(size))


def send(device: Device, to: int, tag: int, data: bytes, context: int = 0, synchronous: bool = False) -> SendCompletion:
    """Send from a buffer that is overwritten as soon as it may be reused."""
    memory = bytearray(data)
    completion = device.send(to, context, tag, memoryview(memory), synchronous)
    completion.add_callback(partial(reuse, memory))
    return completion


async def nothing(_device: Device, _node: SimNode) -> None:
    """Do nothing: the program of a bystander."""


# MPI 4.1, section 3.2.4: source and destination may be equal; section 3.5: messages of one sender do not overtake.


def self_sends(candidate: Candidate) -> None:
    sizes = candidate.sizes(0, 1, 60, 1_456, 4_097, 20_000)

    async def talk(device: Device, node: SimNode) -> None:
        rank = device.rank
        messages = [content(number, size) for number, size in enumerate(sizes)]
        ahead = [Buffer(device, rank, 5, len(data)) for data in messages]
        await _all([send(device, rank, 5, data) for data in messages])
        for buffer, data in zip(ahead, messages, strict=True):
            await buffer.expect(rank, 5, data)
        sends = [send(device, rank, 6, data) for data in messages]
        await node.sleep(LATE)
        for data in messages:
            await Buffer(device, ANY_SOURCE, 6, len(data)).expect(rank, 6, data)
        await _all(sends)
        synchronous = send(device, rank, 7, b"wait", synchronous=True)
        await node.sleep(LATE)
        if synchronous.done:
            raise Violation("a synchronous send to itself is complete, and nothing has received it")
        await Buffer(device, rank, 7, 4).expect(rank, 7, b"wait")
        await synchronous

    converse(candidate, Description.star(2), [talk, nothing])


# MPI 4.1, section 3.2.4: a receive may leave source and tag open, but not the communicator; section 3.5: order.


def wildcards(candidate: Candidate) -> None:
    def data(rank: int, tag: int) -> bytes:
        return content(rank * 10 + tag, 40 * rank + tag)

    async def sender(device: Device, node: SimNode) -> None:
        await node.sleep(LATE)
        other = send(device, 0, 2, b"another context", context=1)
        await _all([other, *[send(device, 0, tag, data(device.rank, tag)) for tag in (1, 2, 3)]])

    async def receiver(late: int, device: Device, node: SimNode) -> None:
        await node.sleep(late)
        seconds = [Buffer(device, ANY_SOURCE, 2, 200) for _ in range(2)]
        if {(await buffer.completion).source for buffer in seconds} != {1, 2}:
            raise Violation("two receives of any source, tag 2, have not got the two messages with that tag")
        for buffer in seconds:
            source, tag, length = buffer.completion.result()
            if (tag, buffer.content[:length]) != (2, data(source, 2)):
                raise Violation(
                    f"a receive of any source, tag 2, has got another message: {buffer.completion.result()}"
                )
        for tag in (1, 3):
            await Buffer(device, 1, ANY_TAG, 200).expect(1, tag, data(1, tag))
        for tag in (1, 3):
            await Buffer(device, ANY_SOURCE, ANY_TAG, 200).expect(2, tag, data(2, tag))
        for source in (2, 1):
            await Buffer(device, source, ANY_TAG, 15, context=1).expect(source, 2, b"another context")

    for late in (0, 2 * LATE):
        converse(candidate, Description.star(3), [partial(receiver, late), sender, sender])


# MPI 4.1, section 3.8.4: a receive is cancelled, or it receives; one that was cancelled takes no message.


def cancel(candidate: Candidate) -> None:
    async def receiver(device: Device, node: SimNode) -> None:
        at_once, wild = Buffer(device, 1, 1, 100), Buffer(device, ANY_SOURCE, ANY_TAG, 100)
        device.cancel(at_once.completion)
        await node.sleep(LATE)
        device.cancel(wild.completion)
        for cancelled in (at_once, wild):
            if await cancelled.completion != CANCELLED:
                raise Violation(
                    f"a receive was cancelled before anything was sent, and has got {cancelled.completion.result()}"
                )
        kept = Buffer(device, 1, 1, 100)
        await send(device, 1, 9, b"now")
        await kept.expect(1, 1, b"first")
        device.cancel(kept.completion)  # too late
        await Buffer(device, 1, 1, 100).expect(1, 1, b"second")
        if set(at_once.content + wild.content) != {UNTOUCHED}:
            raise Violation("the buffer of a cancelled receive has been written to")

    async def sender(device: Device, _node: SimNode) -> None:
        await Buffer(device, 0, 9, 3).expect(0, 9, b"now")
        await _all([send(device, 0, 1, b"first"), send(device, 0, 1, b"second")])

    converse(candidate, Description.star(2), [receiver, sender])


# MPI 4.1, section 3.2.4: a message longer than the buffer is an error of the receive, and nothing else is overwritten.


def truncation(candidate: Candidate) -> None:
    sizes = candidate.sizes(101, 1_400, 6_000)

    async def receiver(late: int, device: Device, node: SimNode) -> None:
        for number, size in enumerate(sizes):
            for room in (0, 100):
                await node.sleep(late)
                buffer = Buffer(device, 1, 3, room)
                try:
                    envelope = await buffer.completion
                except MPIError as error:
                    if error.error_class != ERR_TRUNCATE:
                        raise
                else:
                    raise Violation(
                        f"a message of {size} bytes is received into {room} without ERR_TRUNCATE: {envelope}"
                    )
                if buffer.content != content(number, size)[:room]:
                    raise Violation(f"a buffer of {room} bytes does not have the first of the {size} of a message")
                await Buffer(device, 1, 3, 4).expect(1, 3, b"next")

    async def sender(device: Device, _node: SimNode) -> None:
        for number, size in enumerate(sizes):
            for _ in range(2):
                await _all([send(device, 0, 3, content(number, size)), send(device, 0, 3, b"next")])

    for late in (0, LATE):
        converse(candidate, Description.star(2), [partial(receiver, late), sender])


# The firmware's interface: a frame has at most `Adapter.mtu` bytes after the Ethernet header.


def mtus(candidate: Candidate) -> str:
    """Exchange messages for each MTU that the protocol does not refuse by a ValueError. Returns which those are."""
    taken = []
    for mtu in MTUS:
        nodes = [Node(name=name, nics=[Nic(mtu=mtu)]) for name in ("n1", "n2")]
        star = Description.star(2).model_dump(exclude_defaults=True)
        description = Description(**{**star, "nodes": nodes})
        try:
            Simulation(description, candidate.protocol.plug).close()
        except ValueError as error:
            if mtu == USUAL:
                raise Violation(f"an MTU of {mtu} bytes is refused: {error}") from error
            continue
        taken.append(f"{mtu:,}")
        sizes = candidate.sizes(0, 1, *range(mtu - 80, mtu + 40, 8), 3 * mtu, 40_000)
        messages = [content(number, size) for number, size in enumerate(sizes)]

        async def sender(device: Device, _node: SimNode, messages: list[bytes] = messages) -> None:
            await _all([send(device, 1, 4, data) for data in messages])

        async def receiver(device: Device, _node: SimNode, messages: list[bytes] = messages) -> None:
            for data in messages:
                await Buffer(device, 0, 4, len(data)).expect(0, 4, data)

        try:
            converse(candidate, description, [sender, receiver])
        except Violation as violation:
            raise Violation(f"with an MTU of {mtu} bytes: {violation}") from violation
    return f"MTUs of {', '.join(taken)} bytes"


# The firmware's interface: `on_timer` puts a deadline that has passed off, or takes it away.


def deadlines(candidate: Candidate) -> None:
    data = content(1, min(5_000, candidate.max_message_size))

    async def sender(device: Device, _node: SimNode) -> None:
        await send(device, 1, 1, data)

    async def receiver(device: Device, _node: SimNode) -> None:
        await Buffer(device, 0, 1, len(data)).expect(0, 1, data)

    def cut_for(seconds: int, simulation: Simulation) -> None:
        (link,) = simulation.layout.links
        simulation.cut(link.name)
        simulation.run_until(simulation.now() + seconds * SECOND)
        simulation.mend(link.name)

    for seconds in (1, 2):
        converse(candidate, Description.back_to_back(), [sender, receiver], act=partial(cut_for, seconds))


# `MatchingEndpoint`: a transfer with a peer that has restarted fails with ERR_PROC_FAILED.


def restarted_peers(candidate: Candidate) -> None:
    """Restart a message's receiver, which has posted no receive, or its sender. The other one's transfer ends."""
    for size in candidate.sizes(100, 5_000, 100_000):
        for moment in RESTARTS:
            for restarting in (0, 1):
                _restart_one(candidate, content(size, size), moment, restarting)


@judged()
def _restart_one(candidate: Candidate, data: bytes, moment: int, restarting: int) -> None:
    ends: list[str] = []

    async def begin(_endpoint: object, node: SimNode, device: Device) -> None:
        """The program of the node that restarts, in each life; it waits for nothing."""
        await device.connect()
        if device.rank == 0:
            send(device, 1, 5, data)
        elif node.adapter.incarnation > FIRST:  # the message may only have been under way to this life
            Buffer(device, 0, 5, len(data))
            send(device, 0, 6, b"here again")

    async def transfer(_endpoint: object, _node: SimNode, device: Device) -> None:
        await device.connect()
        try:
            if device.rank == 0:
                await send(device, 1, 5, data)
            else:
                await Buffer(device, 0, 5, len(data)).expect(0, 5, data)
        except MPIError as error:
            if error.Get_error_class() != ERR_PROC_FAILED:
                raise Violation(f"a transfer with a node that has restarted has failed otherwise: {error}") from error
        ends.append("ended")

    with Simulation(
        Description.back_to_back(delay="20us", rate="100mbit"), candidate.protocol.plug, seed=0
    ) as simulation:
        for number, node in enumerate(simulation.nodes.values()):
            program = begin if number == restarting else transfer
            simulation.spawn(node.name, program, candidate.protocol.device(node.endpoint))
        simulation.run_until(moment)
        again = simulation.restart(f"n{restarting + 1}")
        simulation.spawn(again.name, begin, candidate.protocol.device(again.endpoint))
        simulation.run_until(moment + TIMEOUT)
    if not ends:
        what = "receiver" if restarting else "sender"
        raise Violation(f"a message of {len(data)} bytes, whose {what} restarts after {moment / 1e6:g} ms, never ends")


async def _all(overs: list[SendCompletion]) -> None:
    for completion in overs:
        await completion

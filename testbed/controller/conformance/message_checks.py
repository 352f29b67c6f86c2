"""Checks of messages through MPI's device: self-sends, wildcards, cancelled receives, truncation, frames and deadlines.

A comment above each check cites its requirement: MPI 4.1, `MatchingEndpoint` and `Device` for messages, the interface of
firmware for frames and time.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Final

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device, SendCompletion
from protocols.mpi.mpi_errors import CANCELLED, ERR_TRUNCATE, Envelope, MPIError
from testbed.controller.conformance.candidate import Candidate, converse
from testbed.controller.conformance.exchanges import GUARD, UNTOUCHED, reuse
from testbed.controller.conformance.network_faults import MILLISECOND, SECOND
from testbed.controller.conformance.trials import Violation
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Nic, Node
from testbed.spec.model import Description

MTUS: Final = (600, 1_500, 9_000)
ETHERNET_MTU: Final = 1_500
"""MTU that every protocol must support."""
BURST: Final = 1_000
"""Messages that are sent at once: more than any NIC has descriptors; EMP's has 640."""
SETTLED: Final = 50 * MILLISECOND
"""Virtual time after which all sent messages have arrived, nanoseconds."""


class Memory(bytearray):
    """Memory of a message, to which there may be weak references."""


class Buffer:
    """A buffer between guards, for which a receive is posted. completion: completion of the receive."""

    def __init__(self, device: Device, source: int, tag: int, size: int, context: int = 0) -> None:
        self._memory = bytearray([UNTOUCHED]) * (size + 2 * GUARD)
        self.completion: Final = device.receive(source, context, tag, memoryview(self._memory)[GUARD : GUARD + size])
        self._end = GUARD + size

    @property
    def content(self) -> bytes:
        """Bytes of the buffer. Raises Violation if its guards were written."""
        before, after = self._memory[:GUARD], self._memory[self._end :]
        if set(before + after) != {UNTOUCHED}:
            raise Violation("memory next to a receive buffer was written")
        return bytes(self._memory[GUARD : self._end])

    async def expect(self, source: int, tag: int, data: bytes) -> None:
        """Wait for the receive. Raises Violation if it does not get this message."""
        envelope = await self.completion
        expected = Envelope(source, tag, len(data))
        if envelope != expected:
            raise Violation(f"expected the message {expected}, received {envelope}")
        if self.content[: len(data)] != data:
            raise Violation(f"the content of the message {expected} differs from what was sent")
        if set(self.content[len(data) :]) - {UNTOUCHED}:
            raise Violation(f"bytes after those of the message {expected} were written")


def content(number: int, size: int) -> bytes:
    """Return the content of message `number`; contents of 1 byte or more differ if their numbers
    differ modulo 256."""
    return bytes((number * 31 + index * index // 7 + index) & 0xFF for index in range(size))


def send(device: Device, to: int, tag: int, data: bytes, context: int = 0, synchronous: bool = False) -> SendCompletion:
    """Send a message from a buffer that is overwritten as soon as it may be reused."""
    memory = bytearray(data)
    completion = device.send(to, context, tag, memoryview(memory), synchronous)
    completion.add_callback(partial(reuse, memory))
    return completion


async def idle(_device: Device, _node: SimNode) -> None:
    """Program of a node that does not take part."""


# MPI 4.1, section 3.2.4: source and destination may be equal; section 3.4: a synchronous send completes only when its
# message is received; section 3.5: messages of one sender do not overtake.


def self_sends(candidate: Candidate) -> None:
    sizes = candidate.sizes(0, 1, 60, 1_456, 4_097, 20_000)

    async def exchange(device: Device, node: SimNode) -> None:
        rank = device.rank
        messages = [content(number, size) for number, size in enumerate(sizes)]
        posted = [Buffer(device, rank, 5, len(data)) for data in messages]
        await _wait_all([send(device, rank, 5, data) for data in messages])
        for buffer, data in zip(posted, messages, strict=True):
            await buffer.expect(rank, 5, data)
        sends = [send(device, rank, 6, data) for data in messages]
        await node.sleep(SETTLED)
        for data in messages:
            await Buffer(device, ANY_SOURCE, 6, len(data)).expect(rank, 6, data)
        await _wait_all(sends)
        synchronous = send(device, rank, 7, b"wait", synchronous=True)
        await node.sleep(SETTLED)
        if synchronous.done:
            raise Violation("a synchronous self-send is complete before its message was received")
        await Buffer(device, rank, 7, 4).expect(rank, 7, b"wait")
        await synchronous

    converse(candidate, Description.star(2), [exchange, idle])


# MPI 4.1, section 3.2.4: a receive may leave source and tag open, but not the communicator; section 3.5: order.


def wildcards(candidate: Candidate) -> None:
    envelopes = ((ANY_SOURCE, 7), (1, 7), (ANY_SOURCE, ANY_TAG), (1, 7), (1, ANY_TAG), (1, 7))
    numbers = [bytes([number]) for number in range(len(envelopes))]

    def data(rank: int, tag: int) -> bytes:
        return content(rank * 10 + tag, 40 * rank + tag)

    async def sender(device: Device, node: SimNode) -> None:
        await node.sleep(SETTLED)
        in_other_context = send(device, 0, 2, b"another context", context=1)
        sends = [send(device, 0, tag, data(device.rank, tag)) for tag in (1, 2, 3)]
        if device.rank == 1:
            sends += [send(device, 0, 7, number, context=2) for number in numbers]
        await _wait_all([in_other_context, *sends])

    async def receiver(late: int, device: Device, node: SimNode) -> None:
        await node.sleep(late)
        in_turn = [Buffer(device, source, tag, 1, context=2) for source, tag in envelopes]
        with_tag_2 = [Buffer(device, ANY_SOURCE, 2, 200) for _ in range(2)]
        if {(await buffer.completion).source for buffer in with_tag_2} != {1, 2}:
            raise Violation("two receives of any source, tag 2, did not get the two messages with that tag")
        for buffer in with_tag_2:
            source, tag, length = buffer.completion.result()
            if (tag, buffer.content[:length]) != (2, data(source, 2)):
                raise Violation(f"a receive of any source, tag 2, got another message: {buffer.completion.result()}")
        for tag in (1, 3):
            await Buffer(device, 1, ANY_TAG, 200).expect(1, tag, data(1, tag))
        for tag in (1, 3):
            await Buffer(device, ANY_SOURCE, ANY_TAG, 200).expect(2, tag, data(2, tag))
        for source in (2, 1):
            await Buffer(device, source, ANY_TAG, 15, context=1).expect(source, 2, b"another context")
        for buffer, number in zip(in_turn, numbers, strict=True):  # matched in the order of their posting
            await buffer.expect(1, 7, number)

    for late in (0, 2 * SETTLED):
        converse(candidate, Description.star(3), [partial(receiver, late), sender, sender])


# MPI 4.1, section 3.8.4: a receive is either cancelled or completes; a cancelled receive takes no message.


def cancel(candidate: Candidate) -> None:
    async def receiver(device: Device, node: SimNode) -> None:
        named, wildcard = Buffer(device, 1, 1, 100), Buffer(device, ANY_SOURCE, ANY_TAG, 100)
        device.cancel(named.completion)
        await node.sleep(SETTLED)
        device.cancel(wildcard.completion)
        for cancelled in (named, wildcard):
            if await cancelled.completion != CANCELLED:
                raise Violation(f"a receive that was cancelled before any send got {cancelled.completion.result()}")
        kept_buffer = Buffer(device, 1, 1, 100)
        await send(device, 1, 9, b"now")
        await kept_buffer.expect(1, 1, b"first")
        device.cancel(kept_buffer.completion)  # too late
        await Buffer(device, 1, 1, 100).expect(1, 1, b"second")
        if set(named.content + wildcard.content) != {UNTOUCHED}:
            raise Violation("the buffer of a cancelled receive was written")

    async def sender(device: Device, _node: SimNode) -> None:
        await Buffer(device, 0, 9, 3).expect(0, 9, b"now")
        await _wait_all([send(device, 0, 1, b"first"), send(device, 0, 1, b"second")])

    converse(candidate, Description.star(2), [receiver, sender])


# MPI 4.1, section 3.2.4: a message longer than the buffer is an error of the receive, and no other memory is written.
# `MatchingEndpoint`: the error is ERR_TRUNCATE, the buffer has the message's first bytes, and the send succeeds.


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
                        f"a message of {size} bytes was received into {room} bytes without ERR_TRUNCATE: {envelope}"
                    )
                if buffer.content != content(number, size)[:room]:
                    raise Violation(
                        f"a buffer of {room} bytes does not have the first bytes of a message of {size} bytes"
                    )
                await Buffer(device, 1, 3, 4).expect(1, 3, b"next")

    async def sender(device: Device, _node: SimNode) -> None:
        for number, size in enumerate(sizes):
            for _ in range(2):
                await _wait_all([send(device, 0, 3, content(number, size)), send(device, 0, 3, b"next")])

    for late in (0, SETTLED):
        converse(candidate, Description.star(2), [partial(receiver, late), sender])


# The firmware's interface: a frame has at most `Adapter.mtu` bytes after the Ethernet header.


def mtus(candidate: Candidate) -> str:
    """Exchange messages for each MTU that the protocol supports, that is, does not refuse by a ValueError; return these
    MTUs."""
    supported = []
    for mtu in MTUS:
        nodes = [Node(name=name, nics=[Nic(mtu=mtu)]) for name in ("n1", "n2")]
        star = Description.star(2).model_dump(exclude_defaults=True)
        description = Description(**{**star, "nodes": nodes})
        try:
            Simulation(description, candidate.protocol.plug).close()
        except ValueError as error:
            if mtu == ETHERNET_MTU:
                raise Violation(f"the protocol refuses an MTU of {mtu} bytes: {error}") from error
            continue
        supported.append(f"{mtu:,}")
        sizes = candidate.sizes(0, 1, *range(mtu - 80, mtu + 40, 8), 3 * mtu, 40_000)
        messages = [content(number, size) for number, size in enumerate(sizes)]

        async def sender(device: Device, _node: SimNode, messages: list[bytes] = messages) -> None:
            await _wait_all([send(device, 1, 4, data) for data in messages])

        async def receiver(device: Device, _node: SimNode, messages: list[bytes] = messages) -> None:
            for data in messages:
                await Buffer(device, 0, 4, len(data)).expect(0, 4, data)

        try:
            converse(candidate, description, [sender, receiver])
        except Violation as violation:
            raise Violation(f"with an MTU of {mtu} bytes: {violation}") from violation
    return f"MTUs of {', '.join(supported)} bytes"


# `Device`: any number of transfers may be begun; those without a descriptor wait for one.


def burst(candidate: Candidate) -> None:
    """Begin more transfers at once than a NIC has descriptors, with receives before and after the sends. No memory of a
    complete send may be in use."""
    sizes = [40_000 if number % 200 == 199 else 1 + number % 50 for number in range(BURST)]
    sizes = [min(size, candidate.max_message_size) for size in sizes]

    async def sender(device: Device, node: SimNode) -> None:
        for tag in (0, 1):
            memories = [Memory(content(number, size)) for number, size in enumerate(sizes)]
            await node.sleep(SETTLED)
            await _wait_all([device.send(1, 0, tag, memoryview(memory)) for memory in memories])
            references = [weakref.ref(memory) for memory in memories]
            await Buffer(device, 1, 9, 0).expect(1, 9, b"")
            del memories
            check_released(references)

    async def receiver(device: Device, node: SimNode) -> None:
        for tag in (0, 1):
            await node.sleep(2 * tag * SETTLED)  # the receives of tag 1 are posted after the sends
            buffers = [Buffer(device, 0, tag, size) for size in sizes]
            for number, (buffer, size) in enumerate(zip(buffers, sizes, strict=True)):
                await buffer.expect(0, tag, content(number, size))
            await send(device, 0, 9, b"")

    converse(candidate, Description.star(2), [sender, receiver])


def check_released(references: Sequence[weakref.ref[Memory]]) -> None:
    """Check that the memory of sends that have ended is not in use. Raises Violation."""
    gc.collect()
    if in_use := sum(reference() is not None for reference in references):
        raise Violation(f"the memory of {in_use} of {len(references):,} sends that have ended is still in use")


# The firmware's interface: `on_timer` postpones or clears a deadline that has passed. The link is cut for a second or two
# while a message is under way, so that retransmission timers expire repeatedly.


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
        simulation.restore(link.name)

    for seconds in (1, 2):
        converse(candidate, Description.back_to_back(), [sender, receiver], change=partial(cut_for, seconds))


async def _wait_all(completions: list[SendCompletion]) -> None:
    for completion in completions:
        await completion

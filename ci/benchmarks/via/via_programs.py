"""Host programs of two nodes: MPI's round trips on EMP and VIA, and streams and numbered messages through a VI of VIA's
reliable provider. The receiver of a VI returns credits for receives that it has posted, since a message without a posted
receive breaks the connection."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness.host_programs import (
    LARGE,
    MESSAGE,
    PING,
    PONG,
    Program,
    Quantiles,
    emp_ping,
    emp_pong,
    emp_sink,
    emp_source,
    quantiles,
    warm_up,
)
from protocols.mpi.comm import Comm
from protocols.mpi.device import Device
from protocols.via.host import ViaNic
from protocols.via.vip_descriptors import Memory
from protocols.via.vipl_names import OP_SENDRECV
from protocols.via.virtual_interface import Descriptor, Vi
from testbed.runtime.nodes.run_orders import ProgramNode

_NAME = b"benchmark"
_LARGE_POSTED = 8  # receives of the stream's sink
_POSTED = 256  # receives of the numbered messages' sink
_CREDITS = 64  # receives for credits
_END = 0xFFFF_FFFF


# MPI


async def mpi_ping(endpoint: Any, node: ProgramNode, *, count: int, device: Callable[[Any], Device]) -> Quantiles:
    comm, peer, now = Comm(device(endpoint)), node.numbers[PONG], time.monotonic_ns
    message, buffer, samples, used = bytes(MESSAGE), bytearray(MESSAGE), list[int](), 0
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start = now()
        answer = await comm.Irecv(buffer, peer, 1)
        await comm.Send(message, peer, 1)
        await answer.Wait()
        if number >= 0:
            samples.append(now() - start)
    return quantiles(samples, time.process_time_ns() - used)


async def mpi_pong(endpoint: Any, node: ProgramNode, *, count: int, device: Callable[[Any], Device]) -> None:
    comm, peer = Comm(device(endpoint)), node.numbers[PING]
    buffer = bytearray(MESSAGE)
    for _ in range(warm_up(count) + count):
        await comm.Recv(buffer, peer, 1)
        await comm.Send(buffer, peer, 1)


# VIA's own calls


class Channel:
    """A connected VI with registered memory. size: bytes of a message. receives: number of posted receives."""

    def __init__(self, nic: ViaNic, vi: Vi, size: int, receives: int) -> None:
        self.vi = vi
        self.posted: deque[tuple[Descriptor, memoryview]] = deque()
        self._nic = nic
        self._size = size
        self._receives = receives

    @classmethod
    async def connect(cls, nic: ViaNic, peer: int, size: int, receives: int) -> tuple["Channel", memoryview, Memory]:
        """Return a channel, and registered memory to send from."""
        ptag = await nic.create_ptag()
        channel = cls(nic, await nic.create_vi(ptag), size, receives)
        view = nic.allocate(size * receives)
        memory = await nic.register(view, ptag)
        for number in range(receives):
            descriptor = Descriptor(data=(memory.segment(number * size, size),))
            channel.posted.append((descriptor, view[number * size : (number + 1) * size]))
            channel.vi.post_receive(descriptor)
        outgoing = nic.allocate(max(size, LARGE))
        registered = await nic.register(outgoing, ptag)
        await channel.vi.connect_peer(peer, _NAME)
        return channel, outgoing, registered

    async def receive(self) -> memoryview:
        """Return the next message, which is valid until `post_again`."""
        await self.vi.receive_queue.wait()
        descriptor, view = self.posted[0]
        if descriptor.has_failed:
            raise AssertionError(f"a receive has failed: {descriptor.status:#x}")
        return view[: descriptor.length]

    def post_again(self) -> None:
        """Post the oldest receive again."""
        self.posted.rotate(-1)
        self.vi.post_receive(self.posted[-1][0])


async def via_source(nic: ViaNic, node: ProgramNode, *, messages: int) -> float:
    """Return bit/s, from the first post to the last completion."""
    channel, _, memory = await Channel.connect(nic, node.numbers[PONG], MESSAGE, _CREDITS)
    await channel.receive()  # the receiver is ready
    channel.post_again()
    start, credit, queue = time.monotonic_ns(), _LARGE_POSTED, channel.vi.send_queue
    for number in range(messages):
        if not credit:
            await channel.receive()
            channel.post_again()
            credit += 1
        channel.vi.post_send(Descriptor(OP_SENDRECV, (memory.segment(0, LARGE),)))
        credit -= 1
        if number >= _LARGE_POSTED:
            await queue.wait()
    for _ in range(min(messages, _LARGE_POSTED)):
        await queue.wait()
    return messages * LARGE * 8e9 / (time.monotonic_ns() - start)


async def via_sink(nic: ViaNic, node: ProgramNode, *, messages: int) -> None:
    channel, _, memory = await Channel.connect(nic, node.numbers[PING], LARGE, _LARGE_POSTED)
    credit = memory.segment(0, MESSAGE)
    for _ in range(messages):
        channel.vi.post_send(Descriptor(OP_SENDRECV, (credit,)))
        await channel.receive()
        channel.post_again()
        await channel.vi.send_queue.wait()


def _numbered(memory: Memory, view: memoryview, number: int, content: int) -> Descriptor:
    """Return the message with this number, whose buffer is not that of any of the 2 * _POSTED - 1 messages before it."""
    offset = number % (2 * _POSTED) * MESSAGE
    view[offset : offset + MESSAGE] = content.to_bytes(MESSAGE, "big")
    return Descriptor(OP_SENDRECV, (memory.segment(offset, MESSAGE),))


async def via_counter(nic: ViaNic, node: ProgramNode, *, messages: int) -> float:
    """Send numbered messages, as many at once as there are receives, and then an end marker; return messages/s, from the
    first post to the last completion."""
    channel, view, memory = await Channel.connect(nic, node.numbers[PONG], MESSAGE, _CREDITS)
    vi, credit, in_flight = channel.vi, _POSTED, 0
    start = time.monotonic_ns()
    for number in range(messages + 1):
        if not credit:
            credit += int.from_bytes(await channel.receive(), "big")
            channel.post_again()
        vi.post_send(_numbered(memory, view, number, number if number < messages else _END))
        credit, in_flight = credit - 1, in_flight + 1
        while vi.send_queue.done() is not None:
            in_flight -= 1
        if in_flight == _POSTED:
            await vi.send_queue.wait()
            in_flight -= 1
    for _ in range(in_flight):
        await vi.send_queue.wait()
    return messages * 1e9 / (time.monotonic_ns() - start)


async def via_checker(nic: ViaNic, node: ProgramNode, *, messages: int) -> int:
    """Return the number of messages out of sequence, including the end marker."""
    channel, view, memory = await Channel.connect(nic, node.numbers[PING], MESSAGE, _POSTED)
    wrong, half = 0, _POSTED // 2
    view[:MESSAGE] = half.to_bytes(MESSAGE, "big")
    for number in range(messages):
        message = await channel.receive()
        wrong += len(message) != MESSAGE or int.from_bytes(message, "big") != number
        channel.post_again()
        if not (number + 1) % half:
            channel.vi.post_send(Descriptor(OP_SENDRECV, (memory.segment(0, MESSAGE),)))
            while channel.vi.send_queue.done() is not None:
                pass
    return wrong + (int.from_bytes(await channel.receive(), "big") != _END)


def programs(kind: str, count: int, device: Callable[[Any], Device] | None = None) -> dict[str, Program]:
    """Return the programs of both nodes. kind: "emp trip", "mpi trip" (with its device), "emp stream", "via stream" or
    "via count"."""
    results: dict[str, tuple[Program, Program]] = {
        "emp trip": (partial(emp_ping, count=count), partial(emp_pong, count=count)),
        "emp stream": (partial(emp_source, messages=count), partial(emp_sink, messages=count)),
        "via stream": (partial(via_source, messages=count), partial(via_sink, messages=count)),
        "via count": (partial(via_counter, messages=count), partial(via_checker, messages=count)),
    }
    if device is not None:
        results["mpi trip"] = (
            partial(mpi_ping, count=count, device=device), partial(mpi_pong, count=count, device=device)
        )  # fmt: skip
    ping, pong = results[kind]
    return {PING: ping, PONG: pong}

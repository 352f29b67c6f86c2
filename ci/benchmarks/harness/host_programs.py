"""Host programs of two nodes: on EMP, and on plain packet sockets with equal options and frame sizes, which are an upper
bound for Python."""

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from protocols.core.completion import Completion
from protocols.emp.codec import MESSAGE_SIZE
from protocols.emp.host import Endpoint
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.run_orders import ProgramNode

PING, PONG = "n1", "n2"
MESSAGE = 4  # bytes of a round trip's message
LARGE = 1 << 20  # bytes of a stream's message
FRAME = 1514  # bytes on the wire, with the Ethernet header
RAW = 0x88B6  # IEEE 802 local experimental EtherType 2
_MTU = 1500
_MAX_POSTED = 8  # receives of the stream's sink, and sends of its source, in progress
_MAX_NUMBERED = 64  # numbered messages in flight
_QUIET = 0.2  # s without a frame after which a stream of raw frames is over

Program = Callable[..., Coroutine[Any, None, object]]
Quantiles = dict[str, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes, for programs on packet sockets. devices, macs: of each node, by name. spin: never sleep. poll: otherwise,
    nanoseconds to poll before sleeping."""

    devices: dict[str, str]
    macs: dict[str, bytes]
    spin: bool
    poll: int = 0


def quantiles(samples: list[int], cpu: int) -> Quantiles:
    """Return quantiles of round trips, and the CPU time of each. samples, cpu: round trips and total CPU time without the
    warm-up, in ns."""
    ordered = sorted(samples)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    results = {name: float(ordered[int(len(ordered) * share)]) for name, share in shares.items()}
    return {"min": float(ordered[0]), **results, "cpu": cpu / len(samples)}


def warm_up(count: int) -> int:
    return count // 10 + 10


# EMP


async def emp_ping(endpoint: Endpoint, node: ProgramNode, *, count: int) -> Quantiles:
    samples, peer, message, now = [], node.numbers[PONG], bytes(MESSAGE), time.monotonic_ns
    buffer = bytearray(MESSAGE)
    used = 0
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start = now()
        answer = endpoint.post_receive(peer, 1, buffer)
        sent = endpoint.post_send(peer, 1, message)
        await answer
        if number >= 0:
            samples.append(now() - start)
        await sent
    return quantiles(samples, time.process_time_ns() - used)


async def emp_pong(endpoint: Endpoint, node: ProgramNode, *, count: int) -> None:
    peer, buffers = node.numbers[PING], (bytearray(MESSAGE), bytearray(MESSAGE))
    arrival = endpoint.post_receive(peer, 1, buffers[0])
    total = warm_up(count) + count
    for number in range(total):
        await arrival
        sent = endpoint.post_send(peer, 1, buffers[number % 2])
        if number + 1 < total:
            arrival = endpoint.post_receive(peer, 1, buffers[(number + 1) % 2])
        await sent


async def emp_source(endpoint: Endpoint, node: ProgramNode, *, messages: int) -> float:
    """Return bit/s, from the first post to the last acknowledgement."""
    peer, data = node.numbers[PONG], bytes(LARGE)
    await endpoint.receive(peer, 2, bytearray(MESSAGE))  # the receiver is ready
    start = time.monotonic_ns()
    in_flight: list[Completion[Any]] = []
    for _ in range(messages):
        if len(in_flight) == _MAX_POSTED:
            await in_flight.pop(0)
        in_flight.append(endpoint.post_send(peer, 1, data))
    for sent in in_flight:
        await sent
    return messages * LARGE * 8e9 / (time.monotonic_ns() - start)


async def emp_sink(endpoint: Endpoint, node: ProgramNode, *, messages: int) -> None:
    peer = node.numbers[PING]
    buffers = [bytearray(LARGE) for _ in range(min(_MAX_POSTED, messages))]
    posted = [endpoint.post_receive(peer, 1, buffer) for buffer in buffers]
    await endpoint.send(peer, 2, bytes(MESSAGE))
    for number in range(messages):
        await posted.pop(0)
        if number + len(buffers) < messages:
            posted.append(endpoint.post_receive(peer, 1, buffers[number % len(buffers)]))


async def emp_counter(endpoint: Endpoint, node: ProgramNode, *, messages: int) -> float:
    """Send numbered messages, as many at once as possible; return messages/s, from the first post to the last
    acknowledgement."""
    peer = node.numbers[PONG]
    await endpoint.receive(peer, 2, bytearray(MESSAGE))  # the receiver is ready
    start = time.monotonic_ns()
    in_flight: deque[Completion[Any]] = deque()
    for number in range(messages):
        if len(in_flight) == _MAX_NUMBERED:
            await in_flight.popleft()
        in_flight.append(endpoint.post_send(peer, 1, number.to_bytes(MESSAGE, "big")))
    for sent in in_flight:
        await sent
    return messages * 1e9 / (time.monotonic_ns() - start)


async def emp_checker(endpoint: Endpoint, node: ProgramNode, *, messages: int) -> int:
    """Return the number of messages out of sequence."""
    peer, wrong = node.numbers[PING], 0
    buffers = [bytearray(MESSAGE) for _ in range(min(_MAX_NUMBERED, messages))]
    posted = deque(endpoint.post_receive(peer, 1, buffer) for buffer in buffers)
    await endpoint.send(peer, 2, bytes(MESSAGE))
    for number in range(messages):
        received = await posted.popleft()
        buffer = buffers[number % _MAX_NUMBERED]
        wrong += received.length != MESSAGE or int.from_bytes(buffer, "big") != number
        if number + len(buffers) < messages:
            posted.append(endpoint.post_receive(peer, 1, buffer))
    return wrong


# Packet sockets


def _open_socket(node: ProgramNode, pair: Pair, peer: str) -> tuple[socket.socket, bytes]:
    """Open the node's socket; return it, and the header of a frame to the peer."""
    wire = FrameSocket(pair.devices[node.name], RAW, _MTU)
    return wire.socket, pair.macs[peer] + pair.macs[node.name] + RAW.to_bytes(2, "big")


def _frames(wire: socket.socket, pair: Pair) -> Iterator[bytes]:
    return _polled_frames(wire, pair.poll) if pair.poll else _received_frames(wire, pair.spin)


def _polled_frames(wire: socket.socket, poll: int) -> Iterator[bytes]:
    receive, now = wire.recv, time.monotonic_ns
    while True:
        deadline, flags = now() + poll, socket.MSG_DONTWAIT.value
        while True:
            try:
                frame = receive(_MTU + 22, flags)
                break
            except BlockingIOError:
                if now() >= deadline:
                    flags = 0
        yield frame


def _received_frames(wire: socket.socket, spin: bool) -> Iterator[bytes]:
    flags, receive = socket.MSG_DONTWAIT if spin else 0, wire.recv
    while True:
        try:
            frame = receive(_MTU + 22, flags)
        except BlockingIOError:
            continue
        yield frame


_HELLO, _START = b"\1", b"\2"
_RETRY = 0.001  # s


def _connect(wire: socket.socket, header: bytes) -> None:
    """Send hellos until the peer replies, and then the start."""
    while True:
        wire.send(header + _HELLO)
        if select.select([wire], [], [], _RETRY)[0]:
            wire.recv(_MTU)
            break
    wire.send(header + _START)


def _accept(wire: socket.socket, header: bytes) -> None:
    """Reply to the peer's hello and wait for its start, so that no hello is left in the socket."""
    wire.recv(_MTU)
    wire.send(header + _HELLO)
    while wire.recv(_MTU)[len(header) : len(header) + 1] != _START:
        pass


async def raw_ping(_: object, node: ProgramNode, *, count: int, pair: Pair) -> Quantiles:
    wire, header = _open_socket(node, pair, PONG)
    frame = header.ljust(MESSAGE_SIZE + MESSAGE, b"\0")
    samples, send, now = [], wire.send, time.monotonic_ns
    answers = _frames(wire, pair)
    used = 0
    _connect(wire, header)
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start = now()
        send(frame)
        next(answers)
        if number >= 0:
            samples.append(now() - start)
    return quantiles(samples, time.process_time_ns() - used)


async def raw_pong(_: object, node: ProgramNode, *, count: int, pair: Pair) -> None:
    wire, header = _open_socket(node, pair, PING)
    frame = header.ljust(MESSAGE_SIZE + MESSAGE, b"\0")
    answers, send = _frames(wire, pair), wire.send
    _accept(wire, header)
    for _number in range(warm_up(count) + count):
        next(answers)
        send(frame)


async def raw_source(_: object, node: ProgramNode, *, frames: int, pair: Pair) -> None:
    wire, header = _open_socket(node, pair, PONG)
    frame = header.ljust(FRAME, b"\0")
    _connect(wire, header)
    send = wire.send
    for _number in range(frames):
        send(frame)


async def raw_sink(_: object, node: ProgramNode, *, frames: int, pair: Pair) -> dict[str, float]:
    """Return bits: bit/s of the frames without their Ethernet headers; lost: number of lost frames."""
    wire, header = _open_socket(node, pair, PING)
    _accept(wire, header)
    receive, now, count, start, last = wire.recv, time.monotonic_ns, 0, 0, 0
    quiet_time = int(_QUIET * 1e9)
    while count < frames:
        try:
            receive(_MTU + 22, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if last and now() - last > quiet_time:
                break
            continue
        last = now()
        start = start or last
        count += 1
    return {"bits": count * (FRAME - 14) * 8e9 / (last - start), "lost": float(frames - count)}


def programs(kind: str, pair: Pair, count: int) -> dict[str, Program]:
    """Return the programs of both nodes. kind: "emp trip", "raw trip", "emp stream" or "emp count" (count: messages), or
    "raw stream" (count: frames)."""
    results: dict[str, tuple[Program, Program]] = {
        "emp trip": (partial(emp_ping, count=count), partial(emp_pong, count=count)),
        "raw trip": (partial(raw_ping, count=count, pair=pair), partial(raw_pong, count=count, pair=pair)),
        "emp stream": (partial(emp_source, messages=count), partial(emp_sink, messages=count)),
        "emp count": (partial(emp_counter, messages=count), partial(emp_checker, messages=count)),
        "raw stream": (partial(raw_source, frames=count, pair=pair), partial(raw_sink, frames=count, pair=pair)),
    }
    ping, pong = results[kind]
    return {PING: ping, PONG: pong}

"""Host programs of two nodes in Open-MX's own calls: round trips, streams, and numbered messages."""

import time
from collections import deque
from functools import partial
from typing import Any

from benchmarks.harness.host_programs import (
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
from protocols.openmx.endpoint import Endpoint
from protocols.openmx.host import Library
from protocols.openmx.mx_requests import Request
from protocols.openmx.partners import Partner
from testbed.runtime.nodes.run_orders import ProgramNode

LARGE = 4 << 20  # bytes of a stream's message
_IN_FLIGHT = 4  # messages of a stream
_MAX_NUMBERED = 256  # numbered messages in flight
_DATA, _CREDIT = 1, 2  # match information
_END = 0xFFFF_FFFF


async def _connect(library: Library, peer: int) -> tuple[Endpoint, Partner]:
    endpoint = library.open_endpoint()
    return endpoint, await endpoint.connect(peer)


async def mx_ping(library: Library, node: ProgramNode, *, count: int) -> Quantiles:
    endpoint, remote = await _connect(library, node.numbers[PONG])
    message, buffer, now, samples, used = bytes(MESSAGE), bytearray(MESSAGE), time.monotonic_ns, list[int](), 0
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start = now()
        answer = endpoint.irecv(buffer, _DATA, forget=True)
        endpoint.isend([message], remote, _DATA, forget=True)
        await answer
        if number >= 0:
            samples.append(now() - start)
    return quantiles(samples, time.process_time_ns() - used)


async def mx_pong(library: Library, node: ProgramNode, *, count: int) -> None:
    endpoint, remote = await _connect(library, node.numbers[PING])
    buffer = bytearray(MESSAGE)
    for _ in range(warm_up(count) + count):
        await endpoint.irecv(buffer, _DATA, forget=True)
        endpoint.isend([buffer], remote, _DATA, forget=True)


async def mx_source(library: Library, node: ProgramNode, *, messages: int) -> float:
    """Return bit/s, from the first send to the last pulled message."""
    endpoint, remote = await _connect(library, node.numbers[PONG])
    await endpoint.irecv(bytearray(MESSAGE), _CREDIT, forget=True)  # the receiver is ready
    data, in_flight = bytes(LARGE), deque[Request]()
    start = time.monotonic_ns()
    for _ in range(messages):
        if len(in_flight) == _IN_FLIGHT:
            await in_flight.popleft()
        in_flight.append(endpoint.isend([data], remote, _DATA, forget=True))
    for request in in_flight:
        await request
    return messages * LARGE * 8e9 / (time.monotonic_ns() - start)


async def mx_sink(library: Library, node: ProgramNode, *, messages: int) -> None:
    endpoint, remote = await _connect(library, node.numbers[PING])
    posted = deque([endpoint.irecv(bytearray(LARGE), _DATA, forget=True) for _ in range(_IN_FLIGHT)])
    endpoint.isend([bytes(MESSAGE)], remote, _CREDIT, forget=True)
    for _ in range(messages):
        done = posted.popleft()
        await done
        posted.append(endpoint.irecv(done.buffer, _DATA, forget=True))


async def mx_counter(library: Library, node: ProgramNode, *, messages: int) -> float:
    """Send numbered messages, several at once, and then an end marker; return messages/s."""
    endpoint, remote = await _connect(library, node.numbers[PONG])
    credit, allowed = endpoint.irecv(bytearray(MESSAGE), _CREDIT, forget=True), _MAX_NUMBERED
    start = time.monotonic_ns()
    for number in range(messages + 1):
        if not allowed:
            await credit
            allowed += int.from_bytes(credit.buffer, "big")
            credit = endpoint.irecv(bytearray(MESSAGE), _CREDIT, forget=True)
        content = number if number < messages else _END
        endpoint.isend([content.to_bytes(MESSAGE, "big")], remote, _DATA, forget=True)
        allowed -= 1
    while int.from_bytes(await _credit(credit), "big") != _END:  # the receiver has received all
        credit = endpoint.irecv(bytearray(MESSAGE), _CREDIT, forget=True)
    return messages * 1e9 / (time.monotonic_ns() - start)


async def _credit(credit: Request) -> memoryview:
    await credit
    return credit.buffer


async def mx_checker(library: Library, node: ProgramNode, *, messages: int) -> int:
    """Return the number of messages out of sequence, including the end marker."""
    endpoint, remote = await _connect(library, node.numbers[PING])
    wrong, half, buffer = 0, _MAX_NUMBERED // 2, bytearray(MESSAGE)
    for number in range(messages + 1):
        result = await endpoint.irecv(buffer, _DATA, forget=True)
        wrong += result.length != MESSAGE or int.from_bytes(buffer, "big") != (number if number < messages else _END)
        if not (number + 1) % half:
            endpoint.isend([half.to_bytes(MESSAGE, "big")], remote, _CREDIT, forget=True)
    endpoint.isend([_END.to_bytes(MESSAGE, "big")], remote, _CREDIT, forget=True)
    return wrong


def programs(kind: str, count: int) -> dict[str, Program]:
    """Return the programs of both nodes. kind: "emp trip", "mx trip", "emp stream", "mx stream" or "mx count"."""
    results: dict[str, tuple[Any, Any]] = {
        "emp trip": (partial(emp_ping, count=count), partial(emp_pong, count=count)),
        "emp stream": (partial(emp_source, messages=count), partial(emp_sink, messages=count)),
        "mx trip": (partial(mx_ping, count=count), partial(mx_pong, count=count)),
        "mx stream": (partial(mx_source, messages=count), partial(mx_sink, messages=count)),
        "mx count": (partial(mx_counter, messages=count), partial(mx_checker, messages=count)),
    }
    ping, pong = results[kind]
    return {PING: ping, PONG: pong}

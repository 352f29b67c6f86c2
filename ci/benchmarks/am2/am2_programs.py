"""Host programs of AM-II: requests of four words with their replies, and bulk messages."""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from benchmarks.harness.host_programs import PING, PONG, Quantiles, emp_ping, emp_pong, quantiles, warm_up
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from testbed.runtime.nodes.run_orders import ProgramNode

LARGE = 1 << 20  # bytes of a bulk message
_TAG = 7
_WORDS = (1, 2, 3, 4)
_REQUEST, _REPLY, _BULK, _BULK_REPLY, _END = range(1, 6)
_RETRY = 10_000_000  # ns between attempts to reach the other node's endpoint

Program = Callable[..., Coroutine[Any, None, object]]


class Requester:
    """Endpoint of the requesting node. replies, returned: numbers of replies and of returned messages since `begin`."""

    def __init__(self, am: ActiveMessages, peer: int) -> None:
        self.endpoint = endpoint = am.allocate_bundle().allocate_endpoint()
        self.replies = 0
        self.returned = 0
        endpoint.tag = _TAG
        endpoint.set_handler(_REPLY, self._on_reply)
        endpoint.set_handler(_BULK_REPLY, self._on_reply)
        endpoint.error_handler = self._on_returned
        endpoint.map(0, EndpointName(peer, 0), _TAG)

    async def begin(self, node: ProgramNode) -> None:
        """Send requests until the other node has its endpoint."""
        while not self.replies:
            before = self.returned
            await self.endpoint.request(0, _REQUEST, *_WORDS)
            while self.returned == before and not self.replies:
                await self.wait_and_poll()
            if self.returned != before:
                await node.loop.sleep(_RETRY)
        self.replies = self.returned = 0

    async def wait_and_poll(self) -> None:
        """Wait until something has arrived, and handle it."""
        await self.endpoint.wait()
        await self.endpoint.poll()

    async def end(self) -> None:
        """Request the other node's end, and wait for the reply."""
        await self.endpoint.request(0, _END)
        replies = self.replies
        while self.replies == replies:
            await self.wait_and_poll()

    def _on_reply(self, _: Token, *words: int) -> None:  # noqa: ARG002
        self.replies += 1

    def _on_returned(self, _: object) -> None:
        self.returned += 1


async def am_ping(am: ActiveMessages, node: ProgramNode, *, count: int) -> Quantiles:
    """Return quantiles of round trips of four words."""
    requester, samples, now, used = Requester(am, node.numbers[PONG]), [], time.monotonic_ns, 0
    endpoint = requester.endpoint
    await requester.begin(node)
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start, replies = now(), requester.replies
        await endpoint.request(0, _REQUEST, *_WORDS)
        while requester.replies == replies:
            await endpoint.wait()
            await endpoint.poll()
        if number >= 0:
            samples.append(now() - start)
    result = quantiles(samples, time.process_time_ns() - used)
    await requester.end()
    return result


async def am_rate(am: ActiveMessages, node: ProgramNode, *, count: int) -> float:
    """Return requests/s: requests of four words with replies, with all credits in use."""
    requester = Requester(am, node.numbers[PONG])
    await requester.begin(node)
    start = time.monotonic_ns()
    for _ in range(count):
        await requester.endpoint.request(0, _REQUEST, *_WORDS)
    while requester.replies < count:
        await requester.wait_and_poll()
    result = count * 1e9 / (time.monotonic_ns() - start)
    await requester.end()
    return result


async def am_source(am: ActiveMessages, node: ProgramNode, *, count: int) -> float:
    """Return bit/s of bulk messages of 1 MiB with all credits in use, until the last reply."""
    requester, data = Requester(am, node.numbers[PONG]), bytes(LARGE)
    await requester.begin(node)
    start = time.monotonic_ns()
    for _ in range(count):
        await requester.endpoint.request_bulk(0, _BULK, data, 0)
    while requester.replies < count:
        await requester.wait_and_poll()
    result = count * LARGE * 8e9 / (time.monotonic_ns() - start)
    await requester.end()
    return result


async def am_pong(am: ActiveMessages, node: ProgramNode) -> None:  # noqa: ARG001
    """Reply until a request to end arrives."""
    endpoint: Endpoint = am.allocate_bundle().allocate_endpoint()
    ended: list[None] = []

    def end(token: Token) -> None:
        token.reply(_REPLY)
        ended.append(None)

    endpoint.segment = bytearray(LARGE)
    endpoint.set_handler(_REQUEST, _reply)
    endpoint.set_handler(_BULK, _reply_to_bulk)
    endpoint.set_handler(_END, end)
    endpoint.tag = _TAG
    while not ended:
        await endpoint.wait()
        await endpoint.poll()


def _reply(token: Token, *words: int) -> None:
    token.reply(_REPLY, *words)


def _reply_to_bulk(token: Token, data: memoryview) -> None:
    token.reply(_BULK_REPLY, len(data))


def programs(kind: str, count: int) -> dict[str, Program]:
    """Return the programs of both nodes. kind: "emp trip", "am trip", "am rate" or "am bulk"."""
    results: dict[str, tuple[Program, Program]] = {
        "emp trip": (partial(emp_ping, count=count), partial(emp_pong, count=count)),
        "am trip": (partial(am_ping, count=count), am_pong),
        "am rate": (partial(am_rate, count=count), am_pong),
        "am bulk": (partial(am_source, count=count), am_pong),
    }
    ping, pong = results[kind]
    return {PING: ping, PONG: pong}

"""Clients and servers of workloads on active messages: requests of four words, and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from protocols.active_messages.am_interface import ActiveMessages, Bundle, Endpoint, Token
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.barrier import TAG, serve_until
from testbed.workloads.form import Node

REQUEST, STOP, REPLY = 1, 2, 3

_PADDING: Final = (0, 0, 0)  # the words of a request after its number


class Client:
    """Client of one server endpoint, with at most `window` requests in flight. trips: times of the last measurement's round
    trips, nanoseconds."""

    def __init__(self, library: ActiveMessages, node: Node, server: EndpointName, window: int) -> None:
        self._now = node.now
        self._window = window
        self._number = 0
        self._in_flight: dict[int, int] = {}  # request number -> start time
        self._measured_period = (0, 0)  # start and end of the measurement
        self.trips: list[int] = []
        endpoint = library.allocate_bundle().allocate_endpoint()
        self.endpoint: Final = endpoint
        endpoint.tag = TAG
        endpoint.set_handler(REPLY, self._on_reply)
        endpoint.map(0, server, TAG)

    async def burst(self, count: int) -> int:
        """Send `count` requests and await all replies; return the duration in nanoseconds."""
        start_time = self._now()
        self._measured_period = (start_time, start_time + (1 << 62))
        self.trips = []
        for _ in range(count):
            await self._request(REQUEST)
        await self._drain()
        return self._now() - start_time

    async def issue(self) -> int:
        """Send a request and await its reply; return the nanoseconds until the request was posted to the NIC."""
        start_time = self._now()
        await self._request(REQUEST)
        elapsed = self._now() - start_time
        await self._drain()
        return elapsed

    async def stream(self, settle: int, time: int) -> None:
        """Send requests as fast as possible, then stop the server. Afterwards `trips` has the round trips whose replies
        arrived within `time` after `settle`, both in nanoseconds."""
        start_time = self._now() + settle
        self._measured_period = (start_time, start_time + time)
        self.trips = []
        while self._now() < start_time + time:
            await self._request(REQUEST)
        await self.stop()

    async def stop(self) -> None:
        """Stop the server, but not before all requests have been answered, since messages are not ordered."""
        await self._drain()
        await self._request(STOP)
        await self._drain()

    async def _request(self, handler: int) -> None:
        await serve_until(self.endpoint, lambda: len(self._in_flight) < self._window)
        number = self._number = self._number + 1 & 0xFFFF_FFFF
        self._in_flight[number] = self._now()
        await self.endpoint.request(0, handler, number, *_PADDING)

    def _on_reply(self, _: Token, number: int, *rest: int) -> None:  # noqa: ARG002
        now = self._now()
        request_time = self._in_flight.pop(number)
        if self._measured_period[0] <= now < self._measured_period[1]:
            self.trips.append(now - request_time)

    async def _drain(self) -> None:
        await serve_until(self.endpoint, lambda: not self._in_flight)


class Server:
    """Server endpoints of one bundle. Each replies until it has been stopped by a number of clients."""

    def __init__(self, library: ActiveMessages, endpoints: int) -> None:
        self.bundle: Final[Bundle] = library.allocate_bundle()
        self.stop_counts: Final[dict[Endpoint, int]] = {}
        """By endpoint, the number of clients that have stopped it."""
        for _ in range(endpoints):
            endpoint = self.bundle.allocate_endpoint()
            endpoint.tag = TAG
            endpoint.set_handler(REQUEST, _answer)
            endpoint.set_handler(STOP, partial(self._stop, endpoint))
            self.stop_counts[endpoint] = 0

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return list(self.stop_counts)

    async def serve_until_stopped(self, endpoint: Endpoint, clients: int) -> None:
        """Serve one endpoint until `clients` clients have stopped it."""
        await serve_until(endpoint, lambda: self.stop_counts[endpoint] >= clients)

    def _stop(self, endpoint: Endpoint, token: Token, *words: int) -> None:
        self.stop_counts[endpoint] += 1
        token.reply(REPLY, *words)


def _answer(token: Token, *words: int) -> None:
    token.reply(REPLY, *words)

"""Torture workload of AM-II: every endpoint sends requests to the endpoints of all other processes.

Each process records what it sent, handled, replied to and got returned. It sends no more to a peer that has stopped
replying. A process is either alone on its node or shares the node's NIC with others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.core.completion import Completion
from testbed.engine.tasks import Task, Work
from testbed.workloads.form import Native, Node
from testbed.workloads.workload_settings import Duration

TAG: Final = 0x7042
SHORT, DATA, REPLY, BYE = range(1, 5)
NOT_READY: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
MEDIUM, BULK = 600, 3_000  # bytes
PAUSE: Final = 10_000_000  # ns between two requests of one task
MAX_BYE_WAIT: Final = 20_000_000_000
"""Nanoseconds that a process waits for the peers' last messages. A peer that wrongly considers this process dead still
sends its own, unless the network loses it."""

RequestKey = tuple[int, int, int]
"""Rank of the requester, index of its endpoint, number of the request at this endpoint."""


class Environment(Protocol):
    """Environment of a torture process. Times are ns."""

    def spawn(self, work: Work[None], name: str) -> Task[None]: ...

    def now(self) -> int: ...

    def sleep(self, duration: int) -> Completion[None]: ...


class Torture(Native[ActiveMessages]):
    """over: duration of the request phase. endpoints: endpoints per process. victim: the rank that is killed.

    A process returns: sent, by rank; handled, with counts; returned: by peer, with reasons; since: replies from others
    after the victim's last one; silent: ranks that have not sent BYE. An endpoint keeps its frame until
    its requests are acknowledged or returned: where there are fewer frames than endpoints, those with requests to
    the victim can occupy all frames; other peers' replies then arrive once the victim is known to be dead.
    """

    protocol = "am2"

    endpoints: int = 12
    victim: int = 3
    over: Duration = 3_000_000_000

    async def program(self, library: ActiveMessages, node: Node) -> dict[str, Any]:
        return await Process(library, node, self).run()


class Process:
    def __init__(self, library: ActiveMessages, node: Environment, workload: Torture) -> None:
        self._library, self._node, self._workload = library, node, workload
        self._others = [rank for rank in range(library.ranks) if rank != library.rank]
        self._open: dict[RequestKey, tuple[int, Completion[bool]]] = {}  # destination by request
        self._sent: dict[int, list[RequestKey]] = {rank: [] for rank in self._others}
        self._handled: list[RequestKey] = []
        self._returned_requests: list[tuple[int, str]] = []
        self._wrong = 0
        self._since = 0
        self._replied: set[tuple[int, EndpointName]] = set()
        """Pairs of (own endpoint, remote endpoint) whose remote endpoint has replied."""
        self._gone: set[int] = set()
        self._byes: set[int] = set()
        self._is_over = False
        self._bundle = library.allocate_bundle()
        self._endpoints = [self._new_endpoint() for _ in range(workload.endpoints)]

    def _new_endpoint(self) -> Endpoint:
        endpoint = self._bundle.allocate_endpoint()
        endpoint.segment = bytearray(BULK * self._library.ranks * self._workload.endpoints)
        endpoint.set_handler(SHORT, lambda token, *requested: self._on_request(token, requested))
        endpoint.set_handler(DATA, lambda token, data, *requested: self._on_data(token, data, requested))
        endpoint.set_handler(REPLY, lambda token, *requested: self._on_reply(token, requested))
        endpoint.set_handler(BYE, lambda token: self._byes.add(self._library.rank_of(token.source)))
        endpoint.error_handler = self._on_returned
        endpoint.tag = TAG
        return endpoint

    async def run(self) -> dict[str, Any]:
        spawn = self._node.spawn
        pump = spawn(self._pump(), "arrivals")
        until = self._node.now() + self._workload.over
        tasks = [
            spawn(self._send_requests(endpoint, peer, until), f"requests to {peer}")
            for endpoint in self._endpoints
            for peer in self._others
        ]
        for task in tasks:
            await task
        first = self._endpoints[0]
        survivors = set(self._others) - {self._workload.victim}
        translations = [first.map_any(self._library.name_of(peer), TAG) for peer in sorted(survivors)]
        for translation in translations:
            await first.request(translation, BYE)
        max_credits, end = self._library.settings.credits, self._node.now() + MAX_BYE_WAIT
        while self._node.now() < end and (
            not self._byes >= survivors - self._gone
            or any(first.credits(translation) < max_credits for translation in translations)
        ):
            await self._node.sleep(PAUSE)  # until all peers have acknowledged BYE
        self._is_over = True
        del pump  # ends with the run
        return {
            "sent": self._sent, "handled": self._handled, "returned": self._returned_requests, "wrong": self._wrong,
            "since": self._since, "faults": self._library.driver.fault_count,
            "silent": sorted(survivors - self._gone - self._byes),
        }  # fmt: skip

    async def _pump(self) -> None:
        while not self._is_over:
            await self._bundle.wait()
            await self._bundle.poll()

    async def _send_requests(self, endpoint: Endpoint, peer: int, until: int) -> None:
        """Send requests of every form, one after the other, to each of a peer's endpoints in turn."""
        library, node, number, count = self._library, self._node, 0, self._workload.endpoints
        own, first = self._endpoints.index(endpoint), library.name_of(peer)
        names = [EndpointName(first.node, first.endpoint + index) for index in range(count)]
        translations = [endpoint.map_any(name, TAG) for name in names]
        offset = BULK * (count * library.rank + own)
        while node.now() < until and peer not in self._gone:
            requested = (library.rank, own, number * library.ranks + peer)
            translation = translations[(own + number) % count]
            done: Completion[bool] = Completion("the reply to %s", requested)
            self._open[requested] = (peer, done)
            if number % 3 == 0:
                await endpoint.request(translation, SHORT, *requested)
            elif number % 3 == 1:
                await endpoint.request_medium(translation, DATA, _content(requested, MEDIUM), *requested)
            else:
                await endpoint.request_bulk(translation, DATA, _content(requested, BULK), offset, *requested)
            if await done:
                number += 1
                self._sent[peer].append(requested)
            await node.sleep(PAUSE)

    def _on_request(self, token: Token, requested: tuple[int, ...]) -> None:
        rank, endpoint, number = requested
        node, first = self._library.name_of(rank)
        self._wrong += token.source != (node, first + endpoint)
        self._handled.append((rank, endpoint, number))
        token.reply(REPLY, *requested)

    def _on_data(self, token: Token, data: memoryview, requested: tuple[int, ...]) -> None:
        rank, endpoint, number = requested
        self._wrong += data != _content((rank, endpoint, number), len(data)) or len(data) not in (MEDIUM, BULK)
        self._on_request(token, requested)

    def _on_reply(self, token: Token, requested: tuple[int, ...]) -> None:
        rank, endpoint, number = requested
        peer = self._library.rank_of(token.source)
        if peer in self._gone:  # it replied before it was killed
            return
        sent_to, done = self._open.pop((rank, endpoint, number))
        self._replied.add((endpoint, token.source))
        self._wrong += peer != sent_to
        if peer == self._workload.victim:
            self._since = 0
        else:
            self._since += 1
        done.complete(True)

    def _on_returned(self, returned: Returned) -> None:
        peer = self._library.rank_of(returned.destination)
        if returned.handler == BYE:  # the peer received it and ended before its reply was acknowledged
            self._gone.add(peer)
            return
        rank, endpoint, number = returned.arguments
        is_new = peer not in self._gone and (endpoint, returned.destination) not in self._replied
        if returned.status in NOT_READY and not returned.is_reply and is_new:
            self._open.pop((rank, endpoint, number))[1].complete(False)
            return
        self._returned_requests.append((peer, returned.status.name))
        self._gone.add(peer)
        # Accepted requests are returned later, when its NIC answers no keepalive.
        for requested in [requested for requested, (destination, _) in self._open.items() if destination == peer]:
            self._open.pop(requested)[1].complete(False)


def _content(requested: RequestKey, size: int) -> bytes:
    return bytes([sum(requested) & 0xFF]) * size


def assert_exactly_once(reported: Mapping[int, Mapping[str, Any]]) -> None:
    """Check that every request between surviving processes was handled exactly once. reported: their reports, by rank."""
    for receiver, received in reported.items():
        assert not received["silent"]
        handled = Counter(tuple(requested) for requested in received["handled"])
        assert set(handled.values()) == {1}
        assert any(received["sent"].values())
        for sender, report in reported.items():
            if sender != receiver:
                sent = {tuple(requested) for requested in report["sent"][receiver]}
                assert {requested for requested in handled if requested[0] == sender} == sent

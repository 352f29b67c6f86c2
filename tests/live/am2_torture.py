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
WORDS, DATA, ANSWER, BYE = range(1, 5)
NOT_YET: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
MEDIUM, BULK = 600, 3_000  # bytes
PAUSE: Final = 10_000_000  # ns between two requests of one task
LONGEST_BYE: Final = 20_000_000_000
"""Nanoseconds for which a process waits for the others' last messages. Another that wrongly counts this one as gone still
sends its own, unless the network does not carry it either."""

RequestKey = tuple[int, int, int]
"""The rank that asks, its endpoint as it counts its own, and the number of the request there."""


class Environment(Protocol):
    """Environment of a torture process. Times are ns."""

    def spawn(self, work: Work[None], name: str) -> Task[None]: ...

    def now(self) -> int: ...

    def sleep(self, duration: int) -> Completion[None]: ...


class Torture(Native[ActiveMessages]):
    """over: how long requests are sent. endpoints: endpoints of each process. victim: the rank that is killed.

    A process returns: sent, by rank; handled, with counts; returned: by peer, with reasons; since: replies from others
    after the victim's last one; silent: ranks that have not said that they are done. An endpoint keeps its frame until
    its requests are acknowledged or returned: where there are fewer frames than endpoints, those that have asked the
    victim can take all frames, and the others' replies then come once it is known to be dead.
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
        self._open: dict[RequestKey, tuple[int, Completion[bool]]] = {}  # by request: its destination
        self._sent: dict[int, list[RequestKey]] = {rank: [] for rank in self._others}
        self._handled: list[RequestKey] = []
        self._returned_requests: list[tuple[int, str]] = []
        self._wrong = 0
        self._since = 0
        self._heard: set[tuple[int, EndpointName]] = set()
        """Pairs of (own endpoint, remote endpoint) of which the remote one has answered."""
        self._gone: set[int] = set()
        self._byes: set[int] = set()
        self._is_over = False
        self._bundle = library.allocate_bundle()
        self._endpoints = [self._opened() for _ in range(workload.endpoints)]

    def _opened(self) -> Endpoint:
        endpoint = self._bundle.allocate_endpoint()
        endpoint.segment = bytearray(BULK * self._library.ranks * self._workload.endpoints)
        endpoint.set_handler(WORDS, lambda token, *requested: self._asked(token, requested))
        endpoint.set_handler(DATA, lambda token, data, *requested: self._given(token, data, requested))
        endpoint.set_handler(ANSWER, lambda token, *requested: self._answered(token, requested))
        endpoint.set_handler(BYE, lambda token: self._byes.add(self._library.rank_of(token.source)))
        endpoint.error_handler = self._returned
        endpoint.tag = TAG
        return endpoint

    async def run(self) -> dict[str, Any]:
        spawn = self._node.spawn
        pump = spawn(self._pump(), "what arrives")
        until = self._node.now() + self._workload.over
        tasks = [
            spawn(self._ask(endpoint, peer, until), f"requests to {peer}")
            for endpoint in self._endpoints
            for peer in self._others
        ]
        for task in tasks:
            await task
        first = self._endpoints[0]
        survivors = set(self._others) - {self._workload.victim}
        places = [first.map_any(self._library.name_of(peer), TAG) for peer in sorted(survivors)]
        for place in places:
            await first.request(place, BYE)
        most, end = self._library.settings.credits, self._node.now() + LONGEST_BYE
        while self._node.now() < end and (
            not self._byes >= survivors - self._gone or any(first.credits(place) < most for place in places)
        ):
            await self._node.sleep(PAUSE)  # until all have heard it, too
        self._is_over = True
        del pump  # it ends with the run
        return {
            "sent": self._sent, "handled": self._handled, "returned": self._returned_requests, "wrong": self._wrong,
            "since": self._since, "faults": self._library.driver.faults,
            "silent": sorted(survivors - self._gone - self._byes),
        }  # fmt: skip

    async def _pump(self) -> None:
        while not self._is_over:
            await self._bundle.wait()
            await self._bundle.poll()

    async def _ask(self, endpoint: Endpoint, peer: int, until: int) -> None:
        """Send requests of every form, one after the other, to each of a peer's endpoints in turn."""
        library, node, number, count = self._library, self._node, 0, self._workload.endpoints
        own, first = self._endpoints.index(endpoint), library.name_of(peer)
        names = [EndpointName(first.node, first.endpoint + other) for other in range(count)]
        places = [endpoint.map_any(name, TAG) for name in names]
        room = BULK * (count * library.rank + own)
        while node.now() < until and peer not in self._gone:
            requested = (library.rank, own, number * library.ranks + peer)
            place = places[(own + number) % count]
            done: Completion[bool] = Completion("the answer to %s", requested)
            self._open[requested] = (peer, done)
            if number % 3 == 0:
                await endpoint.request(place, WORDS, *requested)
            elif number % 3 == 1:
                await endpoint.request_medium(place, DATA, _content(requested, MEDIUM), *requested)
            else:
                await endpoint.request_bulk(place, DATA, _content(requested, BULK), room, *requested)
            if await done:
                number += 1
                self._sent[peer].append(requested)
            await node.sleep(PAUSE)

    def _asked(self, token: Token, requested: tuple[int, ...]) -> None:
        rank, endpoint, number = requested
        node, first = self._library.name_of(rank)
        self._wrong += token.source != (node, first + endpoint)
        self._handled.append((rank, endpoint, number))
        token.reply(ANSWER, *requested)

    def _given(self, token: Token, data: memoryview, requested: tuple[int, ...]) -> None:
        rank, endpoint, number = requested
        self._wrong += data != _content((rank, endpoint, number), len(data)) or len(data) not in (MEDIUM, BULK)
        self._asked(token, requested)

    def _answered(self, token: Token, requested: tuple[int, ...]) -> None:
        rank, endpoint, number = requested
        peer = self._library.rank_of(token.source)
        if peer in self._gone:  # it has answered before it was killed
            return
        sent_to, done = self._open.pop((rank, endpoint, number))
        self._heard.add((endpoint, token.source))
        self._wrong += peer != sent_to
        if peer == self._workload.victim:
            self._since = 0
        else:
            self._since += 1
        done.complete(True)

    def _returned(self, returned: Returned) -> None:
        peer = self._library.rank_of(returned.destination)
        if returned.handler == BYE:  # from a process that received it, and ended before its answer was acknowledged
            self._gone.add(peer)
            return
        rank, endpoint, number = returned.arguments
        is_new = peer not in self._gone and (endpoint, returned.destination) not in self._heard
        if returned.status in NOT_YET and not returned.is_reply and is_new:
            self._open.pop((rank, endpoint, number))[1].complete(False)
            return
        self._returned_requests.append((peer, returned.status.name))
        self._gone.add(peer)
        # Its accepted and unanswered requests are returned only if its NIC survives, or restarts.
        for requested in [requested for requested, (other, _) in self._open.items() if other == peer]:
            self._open.pop(requested)[1].complete(False)


def _content(requested: RequestKey, size: int) -> bytes:
    return bytes([sum(requested) & 0xFF]) * size


def is_exactly_once(reported: Mapping[int, Mapping[str, Any]]) -> None:
    """Check that every request between surviving processes was handled exactly once. said: their reports, by rank."""
    for receiver, one in reported.items():
        assert not one["silent"]
        handled = Counter(tuple(requested) for requested in one["handled"])
        assert set(handled.values()) == {1}
        assert any(one["sent"].values())
        for sender, report in reported.items():
            if sender != receiver:
                sent = {tuple(requested) for requested in report["sent"][receiver]}
                assert {requested for requested in handled if requested[0] == sender} == sent

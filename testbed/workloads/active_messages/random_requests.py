"""Random requests between all endpoints of all nodes, verified: each is handled once, or returned to its sender."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.am_interface import ActiveMessages, Endpoint, Token
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.barrier import TAG
from testbed.workloads.form import Contents, Native, Node, VerificationError
from testbed.workloads.quantiles import log_uniform
from testbed.workloads.workload_settings import Duration, MessageSize

_WORDS, _DATA, _ANSWER, _ANSWER_DATA, _DONE = range(1, 6)
_NOT_YET: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
_PAUSE: Final = 5_000_000  # nanoseconds between two looks at whether all is over, and before a request is sent again
_MAX_WORDS: Final = 11
"""Beside the serial."""
_SERIAL: Final = ("rank", "starts", "number")

Serial = tuple[int, int, int]
"""A request's name in its arguments: the sender's rank, how often its program had been started, and a number."""


class RandomRequests(Native[ActiveMessages]):
    """On active messages: random requests of all kinds from each endpoint to any of the other nodes', verified:
    handled once, or returned.

    requests: of each node. endpoints: of each node. largest: bytes of data; above a medium message's room it is a bulk
    message. freed: endpoints that a node frees in the middle; requests to them are returned from then on. over: the time
    over which a node's requests are spread; 0: as fast as possible. patience: a node that has heard nothing for so long
    abandons its requests, and does not wait for nodes that have not said that they are done. Of a node that was
    unreachable the others get its requests, until it has sent something.
    """

    checked = True
    bears_restarts = True

    requests: int = 200
    endpoints: int = 3
    largest: MessageSize = 4_000
    freed: int = 0
    over: Duration = 0
    patience: Duration = 8_000_000_000

    def __post_init__(self) -> None:
        if self.requests < 0 or not 1 <= self.endpoints <= 64 or not 0 <= self.freed < self.endpoints:
            raise ValueError("requests: 0 or more; endpoints: 1 to 64; freed: 0 or more, and fewer than endpoints")
        if self.over < 0 or self.patience < 1:
            raise ValueError("over: 0 or more; patience: above 0")

    async def program(self, library: ActiveMessages, node: Node) -> Mapping[str, int]:
        return await _Program(self, library, node).run()


class _Open(NamedTuple):
    """A request without an end. slot: of the destination's segment, for a bulk message; -1: none."""

    endpoint: Endpoint
    to: EndpointName
    slot: int


class _Program:
    """The program of one node. counts: of its requests, by what became of them."""

    def __init__(self, workload: RandomRequests, library: ActiveMessages, node: Node) -> None:
        self._workload = workload
        self._node = node
        self._contents = Contents(0, "am-random", workload.largest)
        self._window = library.window
        self._room = library.medium_room(len(_SERIAL))
        self._words_at_most = min(_MAX_WORDS, library.max_short - len(_SERIAL))
        self.counts: Counter[str] = Counter()
        self._number = 0
        self._open: dict[int, _Open] = {}
        self._again: list[tuple[Endpoint, EndpointName]] = []
        self._handled: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._slots: dict[tuple[int, EndpointName], list[int]] = {}  # free ones, by own endpoint and destination
        self._places: dict[tuple[int, EndpointName], int] = {}
        self._met: set[int] = set()  # nodes that have answered
        self._done: set[int] = set()  # nodes that say that they are done
        self._gone: set[int] = set()  # nodes that were unreachable, and have sent nothing since
        self._heard = node.now()
        self._is_over = False
        self._bundle = library.allocate_bundle()
        self._endpoints = [self._allocate() for _ in range(workload.endpoints)]

    def _allocate(self) -> Endpoint:
        endpoint = self._bundle.allocate_endpoint()
        senders = len(self._node.names) * self._workload.endpoints
        endpoint.segment = bytearray(max(1, self._workload.largest) * senders * self._window)
        endpoint.set_handler(_WORDS, self._words)
        endpoint.set_handler(_DATA, self._data)
        endpoint.set_handler(_ANSWER, self._answered)
        endpoint.set_handler(_ANSWER_DATA, self._answered_with_data)
        endpoint.set_handler(_DONE, lambda _, rank: self._done.add(rank))
        endpoint.error_handler = lambda returned: self._returned(endpoint, returned)
        endpoint.tag = TAG
        return endpoint

    async def run(self) -> Mapping[str, int]:
        """Send all requests; serve until all nodes are done. Raises VerificationError."""
        node, spawn = self._node, self._node.spawn
        begun = node.now()
        pump, watch = spawn(self._pump(), "what arrives"), spawn(self._watch(), "patience")
        tasks = [
            spawn(self._send(number, endpoint, begun), f"requests of endpoint {number}")
            for number, endpoint in enumerate(self._endpoints)
        ]
        for task in tasks:
            await task
        while self._open or self._again:
            await node.sleep(_PAUSE)
        others = {rank for rank in range(len(node.names)) if rank != node.rank}
        first = self._endpoints[0]
        for rank in others - self._gone:
            await first.request(self._place(first, EndpointName(rank, 0)), _DONE, node.rank)
        while not self._is_quiet() and not (self._done | self._gone >= others and self._are_told(first)):
            await node.sleep(_PAUSE)
        self._is_over = True
        del pump, watch  # they end with the run
        node.row(**self.counts, took_ns=node.now() - begun)
        if self.counts["handled_twice"]:
            raise VerificationError(f"{self.counts['handled_twice']} requests were handled twice")
        return dict(self.counts)

    def _is_quiet(self) -> bool:
        return self._node.now() - self._heard > self._workload.patience

    def _are_told(self, first: Endpoint) -> bool:
        """Whether the other nodes that are there have taken our word that we are done."""
        return all(
            first.credits(place) == self._window or name.node in self._gone
            for (endpoint, name), place in self._places.items()
            if endpoint == first.name.endpoint and name.endpoint == 0
        )

    async def _pump(self) -> None:
        while not self._is_over:
            await self._bundle.wait()
            await self._bundle.poll()

    async def _watch(self) -> None:
        """Send again what was returned too early; abandon requests when nothing has been heard for long."""
        while not self._is_over:
            await self._node.sleep(_PAUSE)
            again, self._again = self._again, []
            for endpoint, to in again:
                await self._request(endpoint, to, self._node.random(f"again/{self._number}"))
            if self._is_quiet() and self._open:
                abandoned = sum(
                    endpoint.abandon(self._places[endpoint.name.endpoint, to])
                    for endpoint, to in {(request.endpoint, request.to) for request in self._open.values()}
                )
                if abandoned:
                    self._heard = self._node.now()

    # Requests.

    async def _send(self, number: int, endpoint: Endpoint, begun: int) -> None:
        """Send an endpoint's share of the requests."""
        node, workload = self._node, self._workload
        is_freed = number >= workload.endpoints - workload.freed
        chance, others = node.random(f"{number}/{node.starts}"), len(node.names) - 1
        share = range(number, workload.requests, workload.endpoints)
        for turn in share if others else ():
            wait = begun + workload.over * turn // workload.requests - node.now()
            if workload.over and wait > 0:
                await node.sleep(wait)
            if is_freed and 2 * turn >= workload.requests:
                self._free(endpoint)
                return
            rank = (node.rank + 1 + chance.randrange(others)) % len(node.names)
            if rank in self._gone:
                present = [other for other in range(len(node.names)) if other not in {*self._gone, node.rank}]
                if not present:
                    self.counts["not_sent"] += 1
                    continue
                rank = chance.choice(present)
            await self._request(endpoint, EndpointName(rank, chance.randrange(workload.endpoints)), chance)

    def _free(self, endpoint: Endpoint) -> None:
        """Free an endpoint, with the requests that it has not heard of."""
        endpoint.free()
        for number, request in list(self._open.items()):
            if request.endpoint is endpoint:
                del self._open[number]
                self.counts["given_up"] += 1
        self._again = [(origin, to) for origin, to in self._again if origin is not endpoint]

    async def _request(self, endpoint: Endpoint, to: EndpointName, chance: random.Random) -> None:
        self._number += 1
        number, node = self._number, self._node
        serial = node.rank, node.starts, number
        place, form = self._place(endpoint, to), chance.randrange(4)
        size = log_uniform(chance.random(), self._workload.largest)
        self._open[number] = _Open(endpoint, to, -1)
        self.counts["sent"] += 1
        slots = self._slots[endpoint.name.endpoint, to]
        if form < 2 or not self._workload.largest:
            words = [chance.getrandbits(32) for _ in range(chance.randrange(self._words_at_most + 1))]
            await endpoint.request(place, _WORDS, *serial, *words)
        elif form == 2 and size <= self._room:
            await endpoint.request_medium(place, _DATA, self._contents.of(number, size), *serial)
        elif slots:
            slot = slots.pop()
            self._open[number] = _Open(endpoint, to, slot)
            offset = slot * self._workload.largest
            await endpoint.request_bulk(place, _DATA, self._contents.of(number, size), offset, *serial)
        else:
            await endpoint.request(place, _WORDS, *serial)

    def _place(self, endpoint: Endpoint, to: EndpointName) -> int:
        key = endpoint.name.endpoint, to
        if key not in self._places:
            self._places[key] = endpoint.map_any(to, TAG)
            first = (self._node.rank * self._workload.endpoints + self._endpoints.index(endpoint)) * self._window
            self._slots[key] = list(range(first, first + self._window))
        return self._places[key]

    # Handlers.

    def _words(self, token: Token, *words: int) -> None:
        rank, starts, number = self._take(words)
        token.reply(_ANSWER, rank, starts, number)

    def _data(self, token: Token, data: memoryview, *words: int) -> None:
        rank, starts, number = self._take(words)
        self._contents.check(number, data, f"from rank {rank}")
        if number % 3 or len(data) > self._room:
            token.reply(_ANSWER, rank, starts, number)
        else:
            token.reply_medium(_ANSWER_DATA, data, rank, starts, number)

    def _take(self, words: tuple[int, ...]) -> Serial:
        """Count a request that is handled."""
        self._heard = self._node.now()
        rank, starts, number = words[:3]
        self._gone.discard(rank)
        handled = self._handled[rank, starts]
        self.counts["handled"] += 1
        self.counts["handled_twice"] += number in handled
        handled.add(number)
        return rank, starts, number

    def _answered_with_data(self, token: Token, data: memoryview, *serial: int) -> None:
        self._contents.check(serial[2], data, f"a reply of {token.source}")
        self._answered(token, *serial)

    def _answered(self, token: Token, rank: int, starts: int, number: int) -> None:
        self._heard = self._node.now()
        self._met.add(token.source.node)
        self._gone.discard(token.source.node)
        ended = self._open.pop(number, None)
        if (rank, starts) != (self._node.rank, self._node.starts) or ended is None or ended.to != token.source:
            self.counts["strange_replies"] += 1
            return
        self.counts["replied"] += 1
        if ended.slot >= 0:
            self._slots[ended.endpoint.name.endpoint, ended.to].append(ended.slot)

    def _returned(self, endpoint: Endpoint, returned: Returned) -> None:
        node, status = returned.destination.node, returned.status
        if status in (Status.UNREACHABLE, Status.ABANDONED):
            self._gone.add(node)
        if returned.is_reply:
            self.counts["replies_returned"] += 1
        elif returned.handler == _DONE:
            self._done.add(node)
        elif (ended := self._open.pop(returned.arguments[2], None)) is None:
            self.counts["strange_returns"] += 1
        elif status in _NOT_YET and node not in self._met and not self._is_quiet():
            self.counts["sent_again"] += 1
            self._again.append((endpoint, returned.destination))
        else:
            self.counts["returned"] += 1
            if ended.slot >= 0 and node not in self._gone:  # a message that was unreachable may still write there
                self._slots[ended.endpoint.name.endpoint, ended.to].append(ended.slot)

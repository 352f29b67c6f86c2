"""Random requests between all endpoints of all nodes, which verify that each request is handled exactly once, or
returned."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.active_messages.am_errors import Returned, RuleError, Status
from protocols.active_messages.am_interface import ActiveMessages, Endpoint, Token
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.barrier import TAG
from testbed.workloads.form import Contents, Native, Node, VerificationError
from testbed.workloads.quantiles import log_uniform
from testbed.workloads.workload_settings import Duration, MessageSize

_WORDS, _DATA, _ANSWER, _ANSWER_DATA, _DONE = range(1, 6)
_NOT_STARTED: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
_POLL_INTERVAL: Final = 5_000_000  # ns between checks for the end and for requests to retransmit
_MAX_WORDS: Final = 11
"""Maximum number of argument words besides the serial."""
_SERIAL: Final = ("rank", "starts", "number")

Serial = tuple[int, int, int]
"""Identifier of a request in its arguments: the sender's rank, how often its program has been started, and a number."""


class RandomRequests(Native[ActiveMessages]):
    """On active messages: random requests of all kinds from each endpoint to endpoints of other nodes, each of which must be
    handled exactly once, or returned.

    requests: number of requests of each node. endpoints: number of endpoints of each node. largest: maximum bytes of data;
    data that does not fit a medium message is sent as a bulk message. freed: number of endpoints that a node frees half-way;
    later requests to them are returned. over: time over which a node's requests are spread; 0: as fast as possible.
    patience: after this time without a message a node abandons its requests, and does not wait for nodes that have not
    reported their end. Requests for an unreachable node are sent to other nodes, until it has sent a message.
    """

    checked = True
    supports_restarts = True

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


class _Pending(NamedTuple):
    """A pending request. slot: slot of the destination's segment, for a bulk message; -1: none."""

    endpoint: Endpoint
    destination: EndpointName
    slot: int


class _Program:
    """The program of one node. counts: number of requests, by outcome."""

    def __init__(self, workload: RandomRequests, library: ActiveMessages, node: Node) -> None:
        self._workload = workload
        self._node = node
        self._contents = Contents(0, "am-random", workload.largest)
        self._window = library.window
        self._room = library.medium_room(len(_SERIAL))
        self._max_words = min(_MAX_WORDS, library.max_short - len(_SERIAL))
        self.counts: Counter[str] = Counter()
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        self._retransmissions: list[tuple[Endpoint, EndpointName]] = []
        self._freed: list[Endpoint] = []
        self._handled: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._slots: dict[tuple[int, EndpointName], list[int]] = {}  # free slots, by local endpoint and destination
        self._mappings: dict[tuple[int, EndpointName], int] = {}
        self._started: set[int] = set()  # nodes that have answered
        self._done: set[int] = set()  # nodes that have reported their end
        self._unreachable: set[int] = set()  # nodes that were unreachable, and from which no message has arrived since
        self._last_arrival = node.now()
        self._is_over = False
        self._bundle = library.allocate_bundle()
        self._endpoints = [self._allocate() for _ in range(workload.endpoints)]

    def _allocate(self) -> Endpoint:
        endpoint = self._bundle.allocate_endpoint()
        senders = len(self._node.names) * self._workload.endpoints
        endpoint.segment = bytearray(max(1, self._workload.largest) * senders * self._window)
        endpoint.set_handler(_WORDS, self._on_words)
        endpoint.set_handler(_DATA, self._on_data)
        endpoint.set_handler(_ANSWER, self._on_reply)
        endpoint.set_handler(_ANSWER_DATA, self._on_reply_with_data)
        endpoint.set_handler(_DONE, lambda _, rank: self._done.add(rank))
        endpoint.error_handler = lambda returned: self._on_returned(endpoint, returned)
        endpoint.tag = TAG
        return endpoint

    async def run(self) -> Mapping[str, int]:
        """Send all requests; serve until all nodes are done. Raises VerificationError."""
        node, spawn = self._node, self._node.spawn
        start_time = node.now()
        pump, watch = spawn(self._pump(), "incoming messages"), spawn(self._watch(), "patience")
        tasks = [
            spawn(self._send(number, endpoint, start_time), f"requests of endpoint {number}")
            for number, endpoint in enumerate(self._endpoints)
        ]
        for task in tasks:
            await task
        while self._pending or self._retransmissions:
            await node.sleep(_POLL_INTERVAL)
        other_ranks = {rank for rank in range(len(node.names)) if rank != node.rank}
        first = self._endpoints[0]
        for rank in other_ranks - self._unreachable:
            await first.request(self._mapping_of(first, EndpointName(rank, 0)), _DONE, node.rank)
        while not self._is_quiet() and not (
            self._done | self._unreachable >= other_ranks and self._is_acknowledged(first)
        ):
            await node.sleep(_POLL_INTERVAL)
        self._is_over = True
        del pump, watch  # they end with the run
        node.row(**self.counts, took_ns=node.now() - start_time)
        if self.counts["handled_twice"]:
            raise VerificationError(f"{self.counts['handled_twice']} requests were handled twice")
        return dict(self.counts)

    def _is_quiet(self) -> bool:
        return self._node.now() - self._last_arrival > self._workload.patience

    def _is_acknowledged(self, first: Endpoint) -> bool:
        """Whether all reachable nodes have acknowledged this node's end, which `first` has sent."""
        return all(
            first.credits(mapping) == self._window or name.node in self._unreachable
            for (endpoint, name), mapping in self._mappings.items()
            if endpoint == first.name.endpoint and name.endpoint == 0
        )

    async def _pump(self) -> None:
        while not self._is_over:
            await self._bundle.wait()
            await self._bundle.poll()

    async def _watch(self) -> None:
        """Retransmit requests that were returned because their receiver had not started; abandon requests after
        `patience`."""
        while not self._is_over:
            await self._node.sleep(_POLL_INTERVAL)
            retransmissions, self._retransmissions = self._retransmissions, []
            for endpoint, destination in retransmissions:
                if endpoint in self._freed:
                    continue
                try:
                    await self._request(endpoint, destination, self._node.random(f"again/{self._number}"))
                except RuleError:
                    if endpoint not in self._freed:
                        raise
            if self._is_quiet() and self._pending:
                abandoned = sum(
                    endpoint.abandon(self._mappings[endpoint.name.endpoint, destination])
                    for endpoint, destination in {
                        (request.endpoint, request.destination) for request in self._pending.values()
                    }
                )
                if abandoned:
                    self._last_arrival = self._node.now()

    # Requests

    async def _send(self, number: int, endpoint: Endpoint, start_time: int) -> None:
        """Send an endpoint's share of the requests."""
        node, workload = self._node, self._workload
        is_freed = number >= workload.endpoints - workload.freed
        rng, other_ranks = node.random(f"{number}/{node.starts}"), len(node.names) - 1
        share = range(number, workload.requests, workload.endpoints)
        for number_of_request in share if other_ranks else ():
            wait = start_time + workload.over * number_of_request // workload.requests - node.now()
            if workload.over and wait > 0:
                await node.sleep(wait)
            if is_freed and 2 * number_of_request >= workload.requests:
                self._free(endpoint)
                return
            rank = (node.rank + 1 + rng.randrange(other_ranks)) % len(node.names)
            if rank in self._unreachable:
                present = [peer for peer in range(len(node.names)) if peer not in {*self._unreachable, node.rank}]
                if not present:
                    self.counts["not_sent"] += 1
                    continue
                rank = rng.choice(present)
            await self._request(endpoint, EndpointName(rank, rng.randrange(workload.endpoints)), rng)

    def _free(self, endpoint: Endpoint) -> None:
        """Free an endpoint. Its pending requests count as given up."""
        self._freed.append(endpoint)
        endpoint.free()
        for number, request in list(self._pending.items()):
            if request.endpoint is endpoint:
                del self._pending[number]
                self.counts["given_up"] += 1
        self._retransmissions = [entry for entry in self._retransmissions if entry[0] is not endpoint]

    async def _request(self, endpoint: Endpoint, destination: EndpointName, rng: random.Random) -> None:
        self._number += 1
        number, node = self._number, self._node
        serial = node.rank, node.starts, number
        mapping, kind = self._mapping_of(endpoint, destination), rng.randrange(4)
        size = log_uniform(rng.random(), self._workload.largest)
        self._pending[number] = _Pending(endpoint, destination, -1)
        self.counts["sent"] += 1
        slots = self._slots[endpoint.name.endpoint, destination]
        if kind < 2 or not self._workload.largest:
            words = [rng.getrandbits(32) for _ in range(rng.randrange(self._max_words + 1))]
            await endpoint.request(mapping, _WORDS, *serial, *words)
        elif kind == 2 and size <= self._room:
            await endpoint.request_medium(mapping, _DATA, self._contents.of(number, size), *serial)
        elif slots:
            slot = slots.pop()
            self._pending[number] = _Pending(endpoint, destination, slot)
            offset = slot * self._workload.largest
            await endpoint.request_bulk(mapping, _DATA, self._contents.of(number, size), offset, *serial)
        else:
            await endpoint.request(mapping, _WORDS, *serial)

    def _mapping_of(self, endpoint: Endpoint, destination: EndpointName) -> int:
        key = endpoint.name.endpoint, destination
        if key not in self._mappings:
            self._mappings[key] = endpoint.map_any(destination, TAG)
            first = (self._node.rank * self._workload.endpoints + self._endpoints.index(endpoint)) * self._window
            self._slots[key] = list(range(first, first + self._window))
        return self._mappings[key]

    # Handlers

    def _on_words(self, token: Token, *words: int) -> None:
        rank, starts, number = self._record_handled(words)
        token.reply(_ANSWER, rank, starts, number)

    def _on_data(self, token: Token, data: memoryview, *words: int) -> None:
        rank, starts, number = self._record_handled(words)
        self._contents.check(number, data, f"from rank {rank}")
        if number % 3 or len(data) > self._room:
            token.reply(_ANSWER, rank, starts, number)
        else:
            token.reply_medium(_ANSWER_DATA, data, rank, starts, number)

    def _record_handled(self, words: tuple[int, ...]) -> Serial:
        """Record a handled request; return its serial."""
        self._last_arrival = self._node.now()
        rank, starts, number = words[:3]
        self._unreachable.discard(rank)
        handled = self._handled[rank, starts]
        self.counts["handled"] += 1
        self.counts["handled_twice"] += number in handled
        handled.add(number)
        return rank, starts, number

    def _on_reply_with_data(self, token: Token, data: memoryview, *serial: int) -> None:
        self._contents.check(serial[2], data, f"a reply of {token.source}")
        self._on_reply(token, *serial)

    def _on_reply(self, token: Token, rank: int, starts: int, number: int) -> None:
        self._last_arrival = self._node.now()
        self._started.add(token.source.node)
        self._unreachable.discard(token.source.node)
        request = self._pending.pop(number, None)
        if (
            (rank, starts) != (self._node.rank, self._node.starts)
            or request is None
            or request.destination != token.source
        ):
            self.counts["strange_replies"] += 1
            return
        self.counts["replied"] += 1
        if request.slot >= 0:
            self._slots[request.endpoint.name.endpoint, request.destination].append(request.slot)

    def _on_returned(self, endpoint: Endpoint, returned: Returned) -> None:
        node, status = returned.destination.node, returned.status
        if status in (Status.UNREACHABLE, Status.ABANDONED):
            self._unreachable.add(node)
        if returned.is_reply:
            self.counts["replies_returned"] += 1
        elif returned.handler == _DONE:
            self._done.add(node)
        elif (request := self._pending.pop(returned.arguments[2], None)) is None:
            self.counts["strange_returns"] += 1
        elif status in _NOT_STARTED and node not in self._started and not self._is_quiet():
            self.counts["sent_again"] += 1
            self._retransmissions.append((endpoint, returned.destination))
        else:
            self.counts["returned"] += 1
            # An undelivered message to an unreachable node may still write to the slot.
            if request.slot >= 0 and node not in self._unreachable:
                self._slots[request.endpoint.name.endpoint, request.destination].append(request.slot)

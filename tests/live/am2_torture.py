"""Every endpoint of every node asks endpoints of all other nodes things, and each node keeps account of what was sent,
handled, answered and returned. Who never answers any more is not asked again."""

from __future__ import annotations

from typing import Any, Final

from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.errors import Returned, Status
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.names import EndpointName
from protocols.am2.host.token import Token
from protocols.core.completion import Completion
from testbed.workloads.form import Node
from testbed.workloads.native import Native
from testbed.workloads.settings import Duration

TAG: Final = 0x7042
WORDS, DATA, ANSWER, BYE = range(1, 5)
NOT_YET: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
MEDIUM, BULK = 600, 3_000  # bytes
PAUSE: Final = 10_000_000  # ns between two requests of one task

Asked = tuple[int, int, int]
"""The node that asks, its endpoint, and the number of the request there."""


class Torture(Native[ActiveMessages]):
    """over: for how long everybody asks. endpoints: of each node. victim: the node that is killed meanwhile. What a node
    returns: sent, by node; handled, all of them, and how often each; came_back: from whom, and why; meanwhile: answers of
    others while the victim was silent and nobody knew that it would remain so."""

    protocol = "am2"

    endpoints: int = 12
    victim: int = 3
    over: Duration = 3_000_000_000

    async def program(self, library: ActiveMessages, node: Node) -> dict[str, Any]:
        one = _OneNode(library, node, self)
        return await one.run()


class _OneNode:
    def __init__(self, library: ActiveMessages, node: Node, workload: Torture) -> None:
        self._library, self._node, self._workload = library, node, workload
        self._others = [rank for rank in range(library.size) if rank != library.node]
        self._open: dict[Asked, tuple[int, Completion[bool]]] = {}  # whom it was sent to
        self._sent: dict[int, list[Asked]] = {rank: [] for rank in self._others}
        self._handled: list[Asked] = []
        self._came_back: list[tuple[int, str]] = []
        self._wrong = 0
        self._meanwhile = 0
        self._gone: set[int] = set()
        self._byes: set[int] = set()
        self._is_over = False
        self._bundle = library.allocate_bundle()
        self._endpoints = [self._opened() for _ in range(workload.endpoints)]

    def _opened(self) -> Endpoint:
        endpoint = self._bundle.allocate_endpoint()
        endpoint.segment = bytearray(BULK * self._library.size * self._workload.endpoints)
        endpoint.set_handler(WORDS, lambda token, *asked: self._asked(token, asked))
        endpoint.set_handler(DATA, lambda token, data, *asked: self._given(token, data, asked))
        endpoint.set_handler(ANSWER, lambda token, *asked: self._answered(token, asked))
        endpoint.set_handler(BYE, lambda token: self._byes.add(token.source.node))
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
        for peer in self._others:
            if peer not in self._gone:
                await first.request(first.map_any(EndpointName(peer, 0), TAG), BYE)
        while not self._byes >= set(self._others) - self._gone:
            await self._node.sleep(PAUSE)
        self._is_over = True
        del pump  # it ends with the run
        return {
            "sent": self._sent, "handled": self._handled, "came_back": self._came_back, "wrong": self._wrong,
            "meanwhile": self._meanwhile, "faults": self._library.driver.faults,
        }  # fmt: skip

    async def _pump(self) -> None:
        while not self._is_over:
            await self._bundle.wait()
            self._bundle.poll()

    async def _ask(self, endpoint: Endpoint, peer: int, until: int) -> None:
        """One request after the other, of all forms, to all of a peer's endpoints in turn."""
        own, node, number = endpoint.name.endpoint, self._node, 0
        count = self._workload.endpoints
        places = [endpoint.map_any(EndpointName(peer, other), TAG) for other in range(count)]
        room = BULK * (count * self._library.node + own)
        while node.now() < until and peer not in self._gone:
            asked = (self._library.node, own, number * self._library.size + peer)
            place = places[(own + number) % count]
            done: Completion[bool] = Completion("the answer to %s", asked)
            self._open[asked] = (peer, done)
            if number % 3 == 0:
                await endpoint.request(place, WORDS, *asked)
            elif number % 3 == 1:
                await endpoint.request_medium(place, DATA, _content(asked, MEDIUM), *asked)
            else:
                await endpoint.request_bulk(place, DATA, _content(asked, BULK), room, *asked)
            if await done:
                number += 1
                self._sent[peer].append(asked)
            await node.sleep(PAUSE)

    def _asked(self, token: Token, asked: tuple[int, ...]) -> None:
        rank, endpoint, number = asked
        self._wrong += token.source != (rank, endpoint)
        self._handled.append((rank, endpoint, number))
        token.reply(ANSWER, *asked)

    def _given(self, token: Token, data: memoryview, asked: tuple[int, ...]) -> None:
        rank, endpoint, number = asked
        self._wrong += data != _content((rank, endpoint, number), len(data)) or len(data) not in (MEDIUM, BULK)
        self._asked(token, asked)

    def _answered(self, token: Token, asked: tuple[int, ...]) -> None:
        rank, endpoint, number = asked
        peer, done = self._open.pop((rank, endpoint, number))
        self._wrong += token.source.node != peer
        if peer == self._workload.victim:
            self._meanwhile = 0
        elif not self._gone:
            self._meanwhile += 1
        done.complete(True)

    def _returned(self, returned: Returned) -> None:
        peer = returned.destination.node
        if returned.status in NOT_YET and not returned.is_reply:
            rank, endpoint, number = returned.arguments
            self._open.pop((rank, endpoint, number))[1].complete(False)
            return
        self._came_back.append((peer, returned.status.name))
        self._gone.add(peer)
        # What its NIC had acknowledged, and its host not yet answered, neither is answered nor comes back.
        for asked in [asked for asked, (other, _) in self._open.items() if other == peer]:
            self._open.pop(asked)[1].complete(False)


def _content(asked: Asked, size: int) -> bytes:
    return bytes([sum(asked) & 0xFF]) * size

"""Barriers and gathering for workloads on active messages.

Each node's first endpoint serves them. It is idle during measurements: its endpoint frame in the NIC is free for
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from protocols.active_messages.am_errors import Returned, ReturnedError, Status
from protocols.active_messages.am_interface import ActiveMessages, Endpoint, Token
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.form import Node

TAG: Final = 0x4E4F57
"""Tag of all endpoints of these workloads."""

_ARRIVED, _VALUES = 1, 2
_NOT_YET: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
_PAUSE: Final = 10_000_000  # nanoseconds before a message returned by a node that had not begun is sent again
_MAX: Final = 7  # values of 64 bits in the words of one message


async def serve_until(endpoint: Endpoint, holds: Callable[[], bool]) -> None:
    """Handle the messages of an endpoint until something holds."""
    while not holds():
        await endpoint.wait()
        await endpoint.poll()


class Collectives:
    """Barriers and gathering of nodes 0 to size - 1. To be constructed before the node has any other endpoint."""

    def __init__(self, library: ActiveMessages, node: Node, size: int) -> None:
        self._node = node
        self._size = size
        self._arrivals: set[tuple[int, int]] = set()
        self._values: dict[int, tuple[int, ...]] = {}
        self._again: list[Returned] = []
        self._generation = 0
        self._places: dict[int, int] = {}
        self._endpoint = endpoint = library.allocate_bundle().allocate_endpoint()
        if endpoint.name.endpoint:
            raise ValueError("this node has endpoints already: its first one is for meetings")
        endpoint.tag = TAG
        endpoint.error_handler = self._returned
        endpoint.set_handler(_ARRIVED, lambda _, generation, distance: self._arrivals.add((generation, distance)))
        endpoint.set_handler(_VALUES, self._heard)

    async def barrier(self) -> None:
        """Wait until all nodes have come here, in log2(n) rounds as `Node.barrier`."""
        self._generation += 1
        distance = 1
        while distance < self._size:
            mark = (self._generation, distance)
            await self._say((self._node.rank + distance) % self._size, _ARRIVED, *mark)
            await self._until(lambda mark=mark: mark in self._arrivals)  # type: ignore[misc]  # mypy on defaults of lambdas
            self._arrivals.discard(mark)
            distance *= 2

    async def gather(self, values: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Return at node 0 the values of all, by rank, at most 7, from 0 to 2^64 - 1; None elsewhere. All nodes wait
        for all."""
        if len(values) > _MAX:
            raise ValueError(f"{len(values)} values: {_MAX} at most")
        if self._node.rank:
            words = [word for value in values for word in (value >> 32, value & 0xFFFF_FFFF)]
            await self._say(0, _VALUES, self._node.rank, *words)
            await self.barrier()
            return None
        await self._until(lambda: len(self._values) == self._size - 1)
        gathered, self._values = self._values, {}
        await self.barrier()
        return [tuple(values), *(gathered[rank] for rank in range(1, self._size))]

    def _heard(self, _: Token, rank: int, *words: int) -> None:
        self._values[rank] = tuple([high << 32 | low for high, low in zip(words[::2], words[1::2], strict=True)])

    def _returned(self, returned: Returned) -> None:
        if returned.status not in _NOT_YET:
            raise ReturnedError(returned)
        self._again.append(returned)

    async def _say(self, rank: int, handler: int, *words: int) -> None:
        place = self._places.get(rank)
        if place is None:
            place = self._places[rank] = self._endpoint.map_any(EndpointName(rank, 0), TAG)
        await self._endpoint.request(place, handler, *words)

    async def _until(self, holds: Callable[[], bool]) -> None:
        endpoint = self._endpoint
        while not holds():
            await endpoint.wait()
            await endpoint.poll()
            if self._again:
                await self._node.sleep(_PAUSE)
                again, self._again = self._again, []
                for message in again:
                    await self._say(message.destination.node, message.handler, *message.arguments)

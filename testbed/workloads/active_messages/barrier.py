"""Barriers and gathering for workloads on active messages.

They use each node's first endpoint, which is idle during measurements, so that its endpoint frame in the NIC is free for
other endpoints.
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
_NOT_STARTED: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
_RETRY_DELAY: Final = (
    10_000_000  # ns until a message is retransmitted that was returned since its receiver had not started
)
_MAX_VALUES: Final = 7  # 64-bit values in one message


async def serve_until(endpoint: Endpoint, condition: Callable[[], bool]) -> None:
    """Handle the messages of an endpoint until a condition holds."""
    while not condition():
        await endpoint.wait()
        await endpoint.poll()


class Collectives:
    """Barriers and gathering among nodes 0 to size - 1. Construct it before the node has any other endpoint."""

    def __init__(self, library: ActiveMessages, node: Node, size: int) -> None:
        self._node = node
        self._size = size
        self._arrivals: set[tuple[int, int]] = set()
        self._values: dict[int, tuple[int, ...]] = {}
        self._returned_messages: list[Returned] = []
        self._generation = 0
        self._mappings: dict[int, int] = {}
        self._endpoint = endpoint = library.allocate_bundle().allocate_endpoint()
        if endpoint.name.endpoint:
            raise ValueError(
                "this node already has endpoints: construct Collectives first, since barriers need endpoint 0"
            )
        endpoint.tag = TAG
        endpoint.error_handler = self._on_returned
        endpoint.set_handler(_ARRIVED, lambda _, generation, distance: self._arrivals.add((generation, distance)))
        endpoint.set_handler(_VALUES, self._on_values)

    async def barrier(self) -> None:
        """Wait until all nodes have called this, in log2(n) rounds like `Node.barrier`."""
        self._generation += 1
        distance = 1
        while distance < self._size:
            key = (self._generation, distance)
            await self._send((self._node.rank + distance) % self._size, _ARRIVED, *key)
            await self._serve_until(lambda key=key: key in self._arrivals)  # type: ignore[misc]  # mypy on defaults of lambdas
            self._arrivals.discard(key)
            distance *= 2

    async def gather(self, values: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Return the values of all nodes, by rank, at node 0; None at other nodes. Includes a barrier. values: at most
        7, each from 0 to 2^64 - 1."""
        if len(values) > _MAX_VALUES:
            raise ValueError(f"a node can contribute up to {_MAX_VALUES} values, got {len(values)}")
        if self._node.rank:
            words = [word for value in values for word in (value >> 32, value & 0xFFFF_FFFF)]
            await self._send(0, _VALUES, self._node.rank, *words)
            await self.barrier()
            return None
        await self._serve_until(lambda: len(self._values) == self._size - 1)
        gathered, self._values = self._values, {}
        await self.barrier()
        return [tuple(values), *(gathered[rank] for rank in range(1, self._size))]

    def _on_values(self, _: Token, rank: int, *words: int) -> None:
        self._values[rank] = tuple([high << 32 | low for high, low in zip(words[::2], words[1::2], strict=True)])

    def _on_returned(self, returned: Returned) -> None:
        if returned.status not in _NOT_STARTED:
            raise ReturnedError(returned)
        self._returned_messages.append(returned)

    async def _send(self, rank: int, handler: int, *words: int) -> None:
        index = self._mappings.get(rank)
        if index is None:
            index = self._mappings[rank] = self._endpoint.map_any(EndpointName(rank, 0), TAG)
        await self._endpoint.request(index, handler, *words)

    async def _serve_until(self, condition: Callable[[], bool]) -> None:
        endpoint = self._endpoint
        while not condition():
            await endpoint.wait()
            await endpoint.poll()
            if self._returned_messages:
                await self._node.sleep(_RETRY_DELAY)
                messages, self._returned_messages = self._returned_messages, []
                for message in messages:
                    await self._send(message.destination.node, message.handler, *message.arguments)

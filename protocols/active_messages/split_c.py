"""Split-C's operations on active messages: a global address space of bytes, and split-phase access to it.

D. Culler et al., "Parallel Programming in Split-C", Supercomputing 1993. A global address names a node and an offset
into that node's memory. `get` and `put` start a split-phase read or write, which is complete after `sync`; a `store` is
one-way, and complete on all nodes after `all_store_sync`. The SSAM paper measures these operations in section 3.4.4.

    async def program(messages, node):
        memory = SplitC(messages, 0xC0FFEE, bytearray(4096), pause)
        await memory.barrier()
        await memory.store(GlobalAddress(1, 64), b"32 bytes at most are one message")
        await memory.all_store_sync()
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from protocols.active_messages.am_errors import Returned, ReturnedError, Status
from protocols.active_messages.am_interface import ActiveMessages, Token
from protocols.active_messages.endpoint_names import EndpointName
from protocols.core.firmware import Buffer

GET, GOT, PUT, DONE, STORE, BULK_PUT, BULK_STORE, ARRIVED = range(1, 9)  # numbers of the handlers
_NOT_STARTED: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG)
"""Reasons why a node that has not constructed its `SplitC` returns a message."""
_REPLY_WORDS: Final = 1  # words of the reply to a GET


class GlobalAddress(NamedTuple):
    """A global pointer: a node, and an offset into its memory."""

    node: int
    offset: int


class SplitC:
    """One node's part of the global address space. All nodes construct it before they allocate other endpoints, so that
    its endpoint has the same number on all. memory: this node's bytes. stored: number of bytes that have been stored in
    this memory (`store_sync`). node: this node's number. node_count: number of nodes."""

    def __init__(
        self, messages: ActiveMessages, tag: int, memory: bytearray, pause: Callable[[], Awaitable[object]]
    ) -> None:
        """tag: of all nodes' endpoints. pause: waits before a barrier message is resent to a node that has not
        started."""
        self.memory: Final = memory
        self.stored = 0
        self.node: Final = messages.node
        self.node_count: Final = messages.size
        self.max_medium: Final = messages.medium_room(_REPLY_WORDS)
        """Maximum bytes that an access transfers in one medium message."""
        self._view: Final = memoryview(memory)
        self._messages = messages
        self._pause = pause
        self._pending = 0  # number of gets and puts without an answer
        self._expected = 0  # sum of the sizes passed to `store_sync`
        self._generation = 0
        self._arrivals: set[tuple[int, int]] = set()
        self._to_resend: list[Returned] = []
        self._endpoint = endpoint = messages.allocate_bundle().allocate_endpoint()
        for number, handler in (
            (GET, self._get), (GOT, self._got), (PUT, self._put), (DONE, self._on_done), (STORE, self._store),
            (BULK_PUT, self._bulk_put), (BULK_STORE, self._bulk_store), (ARRIVED, self._on_arrived),
        ):  # fmt: skip
            endpoint.set_handler(number, handler)
        endpoint.error_handler = self._on_returned
        endpoint.segment = memory
        number = endpoint.name.endpoint
        self._indexes = [endpoint.map_any(EndpointName(node, number), tag) for node in range(self.node_count)]
        endpoint.tag = tag

    # Split-phase access.

    async def get(self, to: int, source: GlobalAddress, size: int) -> None:
        """Start to read bytes into this node's memory, from offset `to` on. Raises ValueError if this memory does not
        have these bytes."""
        self._check(self.node, to, size)
        if source.node == self.node:
            self._check(self.node, source.offset, size)
            self.memory[to : to + size] = self.memory[source.offset : source.offset + size]
            return
        for begin in range(0, size, self.max_medium):
            chunk_size = min(self.max_medium, size - begin)
            self._pending += 1
            index = self._indexes[source.node]
            await self._endpoint.request(index, GET, source.offset + begin, chunk_size, to + begin)

    async def put(self, to: GlobalAddress, data: Buffer) -> None:
        """Start to write bytes, which are copied. Raises ValueError if they are for this node's memory and do not
        fit."""
        await self._write(PUT, BULK_PUT, to, data)

    async def sync(self) -> None:
        """Wait until all gets and puts of this node are complete."""
        await self._until(lambda: not self._pending)

    async def read(self, source: GlobalAddress, size: int, to: int) -> memoryview:
        """Read bytes into this node's memory, from offset `to` on; wait until they have arrived, and return them."""
        await self.get(to, source, size)
        await self.sync()
        return self._view[to : to + size]

    async def write(self, to: GlobalAddress, data: Buffer) -> None:
        """Write bytes, and wait until they are written."""
        await self.put(to, data)
        await self.sync()

    # Bulk access of any size: a write is one bulk message, a read as many messages as it needs.

    bulk_read = read
    bulk_write = write
    bulk_get = get
    bulk_put = put

    # One-way access.

    async def store(self, to: GlobalAddress, data: Buffer) -> None:
        """Write bytes without a reply: `store_sync` and `all_store_sync` wait for their arrival."""
        await self._write(STORE, BULK_STORE, to, data)

    async def store_sync(self, size: int) -> None:
        """Wait until `size` more bytes have been stored in this memory."""
        self._expected += size
        await self._until(lambda: self.stored >= self._expected)

    async def all_store_sync(self) -> None:
        """Wait until all stores of all nodes are complete. Every node must call it."""
        window = self._messages.window
        await self._until(lambda: all(self._endpoint.credits(index) >= window for index in self._indexes))
        await self.barrier()

    async def barrier(self) -> None:
        """Wait until every node has called this, in log2(n) rounds, rounded up."""
        self._generation += 1
        distance = 1
        while distance < self.node_count:
            mark = self._generation, distance
            await self._send_arrival((self.node + distance) % self.node_count, *mark)
            await self._until(lambda mark=mark: mark in self._arrivals)  # type: ignore[misc]  # mypy on defaults of lambdas
            self._arrivals.discard(mark)
            distance *= 2

    async def poll(self) -> int:
        """Handle the messages that have arrived; return their number."""
        return await self._endpoint.poll()

    # Handlers.

    def _get(self, token: Token, offset: int, size: int, to: int) -> None:
        self._check(self.node, offset, size)
        token.reply_medium(GOT, self._view[offset : offset + size], to)

    def _got(self, _: Token, data: memoryview, to: int) -> None:
        self._view[to : to + len(data)] = data
        self._pending -= 1

    def _put(self, token: Token, data: memoryview, offset: int) -> None:
        self._check(self.node, offset, len(data))
        self._view[offset : offset + len(data)] = data
        token.reply(DONE)

    def _bulk_put(self, token: Token, _: memoryview) -> None:
        token.reply(DONE)

    def _on_done(self, _: Token) -> None:
        self._pending -= 1

    def _store(self, _: Token, data: memoryview, offset: int) -> None:
        self._check(self.node, offset, len(data))
        self._view[offset : offset + len(data)] = data
        self.stored += len(data)

    def _bulk_store(self, _: Token, data: memoryview) -> None:
        self.stored += len(data)

    def _on_arrived(self, _: Token, generation: int, distance: int) -> None:
        self._arrivals.add((generation, distance))

    def _on_returned(self, returned: Returned) -> None:
        if returned.handler != ARRIVED or returned.status not in _NOT_STARTED:
            raise ReturnedError(returned)
        self._to_resend.append(returned)

    # Messages.

    async def _write(self, short: int, bulk: int, to: GlobalAddress, data: Buffer) -> None:
        contents = memoryview(data).cast("B")
        size, is_put = len(contents), short == PUT
        if to.node == self.node:
            self._check(to.node, to.offset, size)
            self.memory[to.offset : to.offset + size] = contents
            self.stored += 0 if is_put else size
            return
        self._pending += is_put
        index = self._indexes[to.node]
        if size <= self.max_medium:
            await self._endpoint.request_medium(index, short, contents, to.offset)
        else:
            await self._endpoint.request_bulk(index, bulk, contents, to.offset)

    async def _send_arrival(self, node: int, generation: int, distance: int) -> None:
        await self._endpoint.request(self._indexes[node], ARRIVED, generation, distance)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._to_resend:
                await self._pause()
                messages, self._to_resend = self._to_resend, []
                for returned in messages:
                    generation, distance = returned.arguments
                    await self._send_arrival(returned.destination.node, generation, distance)
            else:
                await self._endpoint.wait()
                await self._endpoint.poll()

    def _check(self, node: int, offset: int, size: int) -> None:
        if not 0 <= offset <= offset + size <= len(self.memory):
            raise ValueError(f"access must be in the {len(self.memory)} bytes of node {node}, got {size} at {offset}")

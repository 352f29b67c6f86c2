"""Costs of SSAM's traps, system calls and messages on a host's core, and round trips and streams between two nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.ssam.host import Library, Reply
from protocols.ssam.sba100 import BATCH, CONTROL_OFFSET
from testbed.workloads.form import Native, Node
from testbed.workloads.quantiles import quantiles

_REQUEST, _REPLY, _COUNT, _END = range(0x636F_7300, 0x636F_7304)
_BATCH_TIME: Final = 1_000_000
"""Nanoseconds for a batch of requests and its answers, on the slower machine of the paper."""


class CellCosts(Native[Library]):
    """On SSAM, between nodes 0 and 1: the core's time for each trap, system call and message, as in tables 1 to 3 of the
    paper; the round trip of messages of `size` bytes, and the rate of a stream of them.

    count: number of round trips. cells: number of messages of the stream. In namespaces the times are those of the present
    machine, and include the time of other processes.
    """

    protocol = "ssam"
    supports_restarts = False

    count: int = 100
    cells: int = 5_000
    size: int = 40

    def __post_init__(self) -> None:
        if self.count < 1 or self.cells < 1 or not 0 <= self.size <= 40:
            raise ValueError("count and cells: 1 or more; size: 0 to 40")

    async def program(self, library: Library, node: Node) -> None:
        if node.rank > 1:
            return
        exchange = _Exchange(library, node)
        if node.rank:
            await exchange.wait_for_requests(1)
            await exchange.serve_batches()
            await exchange.wait_for_end()
            return
        await exchange.trip(b"")
        await exchange.send_batches()
        for measure, elapsed in self._traps(library, node):
            node.row(measure=measure, ns=elapsed)
        trips = [await exchange.trip(bytes(self.size)) for _ in range(self.count)]
        node.row(measure="round trip", size_bytes=self.size, **quantiles(trips))
        elapsed = await exchange.stream(self.cells, bytes(self.size))
        node.row(measure="stream", size_bytes=self.size, bit_per_s=self.cells * self.size * 8e9 / elapsed)
        await library.request(1, _END)
        await exchange.drain()

    def _traps(self, library: Library, node: Node) -> list[tuple[str, int]]:
        """Measure the traps and the system calls with cells that contain no message, which the kernel discards. Return
        nanoseconds by measure."""
        process, now = library.process, node.now
        local, peer = process.connect(node.rank), process.connect(1 - node.rank)

        def elapsed(work: Callable[[], object]) -> int:
            start_time = now()
            work()
            return now() - start_time

        def time_read(cells: int) -> int:
            for _ in range(cells):
                process.write(local, CONTROL_OFFSET)
            return elapsed(process.read)

        single, batch = time_read(1), time_read(BATCH)
        process.write(local, CONTROL_OFFSET)
        return [
            ("write trap", elapsed(lambda: process.write(peer, CONTROL_OFFSET))),
            ("write call", elapsed(lambda: process.call_write(peer, CONTROL_OFFSET))),
            ("read call, 1 cell", elapsed(process.call_read)),
            ("read call, 0 cells", elapsed(process.call_read)),
            ("read trap, 1 cell", single),
            ("read trap, each further cell", (batch - single) // (BATCH - 1)),
            ("write-read trap, 0 cells", elapsed(lambda: process.write_read(peer, CONTROL_OFFSET))),
            ("write-read trap, 1 cell", elapsed(lambda: process.write_read(local, CONTROL_OFFSET))),
        ]


class _Exchange:
    """One node's side of the messages between two nodes. reply_count, request_count: numbers of received replies and
    requests."""

    def __init__(self, library: Library, node: Node) -> None:
        self._library = library
        self._node = node
        self._peer = 1 - node.rank
        self._has_ended = False
        self.reply_count = 0
        self.request_count = 0
        library.set_handler(_REQUEST, self._on_request)
        library.set_handler(_REPLY, self._on_reply)
        library.set_handler(_COUNT, self._on_count)
        library.set_handler(_END, self._on_end)

    def _on_request(self, _: int, data: bytes) -> Reply:
        self.request_count += 1
        return Reply(_REPLY, data)

    def _on_reply(self, _: int, data: bytes) -> None:  # noqa: ARG002
        self.reply_count += 1

    def _on_count(self, _: int, data: bytes) -> None:  # noqa: ARG002
        self.request_count += 1

    def _on_end(self, _: int, data: bytes) -> None:  # noqa: ARG002
        self._has_ended = True

    async def wait_for_requests(self, count: int) -> None:
        while self.request_count < count:
            await self._library.poll()

    async def wait_for_end(self) -> None:
        while not self._has_ended:
            await self._library.poll()

    async def drain(self) -> None:
        """Poll until every request has been answered."""
        while self._library.pending_work():
            await self._library.poll()

    async def trip(self, data: bytes) -> int:
        """Send a request and await its reply; return the nanoseconds."""
        start_time, before = self._node.now(), self.reply_count
        await self._library.request(self._peer, _REQUEST, data)
        while self.reply_count == before:
            await self._library.poll()
        return self._node.now() - start_time

    async def stream(self, count: int, data: bytes) -> int:
        """Send requests without a reply as fast as the window permits; return the nanoseconds until all are
        acknowledged."""
        start_time = self._node.now()
        for _ in range(count):
            await self._library.request(self._peer, _COUNT, data)
        await self.drain()
        return self._node.now() - start_time

    async def send_batches(self) -> None:
        """Send a batch of requests that are acknowledged, and a batch of requests with replies; measure the costs of
        sending, and of handling the answers."""
        for handler, measure in ((_COUNT, "handle acknowledgement"), (_REQUEST, "handle reply")):
            start_time = self._node.now()
            for _ in range(BATCH):
                await self._library.request(self._peer, handler)
            sent = self._node.now() - start_time
            await self._node.sleep(2 * _BATCH_TIME)
            if handler == _COUNT:
                self._node.row(measure="send request", ns=sent // BATCH)
            self._node.row(measure=measure, ns=await self._poll_time())
            await self._node.sleep(_BATCH_TIME // 2)

    async def serve_batches(self) -> None:
        """Receive batches of requests, and measure the cost of handling them."""
        library, node = self._library, self._node
        for measure in ("handle request, acknowledge", "handle request, reply"):
            await node.sleep(_BATCH_TIME)
            elapsed = await self._poll_time()
            node.row(measure=measure, ns=elapsed)
            if "reply" not in measure:
                start_time = node.now()
                library.process.write(library.process.connect(node.rank), CONTROL_OFFSET)
                node.row(measure="handle request, no answer", ns=elapsed - (node.now() - start_time))
                library.process.read()
            await node.sleep(_BATCH_TIME * 3 // 2)

    async def _poll_time(self) -> int:
        """Poll once; return the nanoseconds per message handled."""
        start_time = self._node.now()
        handled = await self._library.poll()
        return (self._node.now() - start_time) // max(handled, 1)

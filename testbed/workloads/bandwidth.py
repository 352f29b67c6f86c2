"""Bandwidth between two ranks: one way, in windows, and in both directions at once."""

from __future__ import annotations

from typing import Literal

from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.lossy_streams import make_streams
from testbed.workloads.quantiles import warm_up
from testbed.workloads.streams import StreamResult, Streams, affordable_count
from testbed.workloads.workload_settings import Duration, MessageSizes

Pattern = Literal["all", "one-way", "windowed", "bidirectional"]


class Bandwidth(Workload):
    """Bandwidth between two ranks, for messages of each size.

    one-way: `window` messages in flight, and one acknowledgement after the last. windowed: `window` messages, then their
    acknowledgement, repeatedly. bidirectional: one-way in both directions at once; the sum of both bandwidths. count:
    maximum number of messages. most: maximum time for one size, which also limits the number of messages.
    """

    supports_loss = True
    supports_restarts = False

    pattern: Pattern = "all"
    sizes: MessageSizes = (0, 1024, 4096, 16384, 65536, 262144, 1048576)
    count: int = 1000
    window: int = 64
    peer: int = 1
    most: Duration = 1_000_000_000

    def __post_init__(self) -> None:
        if min(self.count, self.window, self.peer) < 1:
            raise ValueError("count, window and peer: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        if self.peer >= comm.size:
            raise ValueError(f"peer {self.peer}: there are ranks 0 to {comm.size - 1}")
        if comm.rank not in (0, self.peer):
            return
        stream = make_streams(comm, node, Contents(node.seed, "bandwidth", max(self.sizes)))
        patterns = ("one-way", "windowed", "bidirectional") if self.pattern == "all" else (self.pattern,)
        for pattern in patterns:
            for size in self.sizes:
                await self._point(comm, node, stream, pattern, size)

    async def _point(self, comm: Comm, node: Node, stream: Streams, pattern: str, size: int) -> None:
        trial_count = min(warm_up(self.count), self.window)
        sent = await self._measure(comm, node, stream, pattern, size, trial_count)
        if comm.rank:
            await self._measure(comm, node, stream, pattern, size, await stream.receive_count(0))
            return
        count = affordable_count(self.count, trial_count, sent.took, self.most)
        await stream.send_count(self.peer, count)
        cpu_time = node.cpu()
        sent = await self._measure(comm, node, stream, pattern, size, count)
        cpu_time = node.cpu() - cpu_time
        delivered = count * (2 if pattern == "bidirectional" else 1) - sent.lost
        node.row(
            pattern=pattern,
            size_bytes=size,
            count=count,
            **stream.losses(sent.lost),
            bandwidth_bit_s=8e9 * size * delivered / max(1, sent.took),
            messages_per_s=1e9 * delivered / max(1, sent.took),
            cpu_ns=cpu_time // max(1, delivered),
        )

    async def _measure(
        self, comm: Comm, node: Node, stream: Streams, pattern: str, size: int, count: int
    ) -> StreamResult:
        """Measure `count` messages; the result is valid at rank 0."""
        peer, window = self.peer - comm.rank, self.window
        if pattern == "bidirectional":
            receiver = node.spawn(stream.receive(peer, size, count, window), "receiver")
            sent = await stream.send(peer, size, count, window)
            return StreamResult(sent.took, sent.lost + await receiver)
        burst_size = window if pattern == "windowed" else count
        elapsed = lost = 0
        for first in range(0, count, burst_size):
            burst = min(burst_size, count - first)
            if comm.rank == 0:
                sent = await stream.send(peer, size, burst, window)
                elapsed, lost = elapsed + sent.took, lost + sent.lost
            else:
                await stream.receive(peer, size, burst, window)
        return StreamResult(elapsed, lost)

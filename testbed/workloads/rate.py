"""Message rate: short messages, many under way, to one and to many destinations."""

from __future__ import annotations

from protocols.mpi.requests import Request
from testbed.workloads.contents import Contents
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.settings import Duration, Size
from testbed.workloads.streams import enough, ready, receive_stream, send_at_once, tell, told


class Rate(Workload):
    """Short messages per second from rank 0, to one other rank and to all at once.

    window: under way, of all destinations together. most: time for each, after which fewer messages have to do.
    """

    size: Size = 8
    count: int = 10_000
    window: int = 64
    most: Duration = 2_000_000_000

    def __post_init__(self) -> None:
        if min(self.count, self.window) < 1:
            raise ValueError("count and window: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        contents = Contents(node.seed, "rate", self.size)
        for destinations in dict.fromkeys((1, comm.size - 1)):
            if comm.rank > destinations:
                continue
            window = max(1, self.window // destinations)
            each = max(1, self.count // destinations)
            if comm.rank:
                await receive_stream(comm, 0, contents, self.size, min(each, window), window)
                await receive_stream(comm, 0, contents, self.size, await told(comm, 0), window)
                continue
            tried = min(each, window)
            receivers = [await ready(comm, other) for other in range(1, destinations + 1)]
            took = await self._send(comm, node, contents, receivers, tried, window)
            each = enough(each, tried, took, self.most)
            receivers = [await ready(comm, other) for other in range(1, destinations + 1)]
            for other in range(1, destinations + 1):
                await tell(comm, other, each)
            used = node.cpu()
            took = await self._send(comm, node, contents, receivers, each, window)
            used = node.cpu() - used
            total = each * destinations
            rate = 1e9 * total / max(1, took)
            node.row(
                destinations=destinations,
                size_bytes=self.size,
                count=total,
                messages_per_s=rate,
                cpu_ns=used // total,
            )

    async def _send(
        self, comm: Comm, node: Node, contents: Contents, receivers: list[Request], count: int, window: int
    ) -> int:
        """Nanoseconds until all have acknowledged, once all are ready."""
        for receiver in receivers:
            await receiver.Wait()
        begun = node.now()
        streams = [
            node.spawn(send_at_once(comm, node, other, contents, self.size, count, window), f"stream to rank {other}")
            for other in range(1, len(receivers) + 1)
        ]
        for stream in streams:
            await stream
        return node.now() - begun

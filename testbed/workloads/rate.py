"""Message rate: short messages, many under way, to one and to many destinations."""

from __future__ import annotations

from collections.abc import Awaitable

from testbed.workloads.contents import Contents
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.lossy_streams import streams
from testbed.workloads.settings import Duration, MessageSize
from testbed.workloads.streams import Sent, Streams, enough


class Rate(Workload):
    """Short messages per second from rank 0, to one other rank and to all at once.

    window: under way, of all destinations together. most: time for each, after which fewer messages have to do.
    """

    bears_loss = True

    size: MessageSize = 8
    count: int = 10_000
    window: int = 64
    most: Duration = 2_000_000_000

    def __post_init__(self) -> None:
        if min(self.count, self.window) < 1:
            raise ValueError("count and window: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        stream = streams(comm, node, Contents(node.seed, "rate", self.size))
        for destinations in dict.fromkeys((1, comm.size - 1)):
            if comm.rank > destinations:
                continue
            window = max(1, self.window // destinations)
            each = max(1, self.count // destinations)
            if comm.rank:
                await stream.receive(0, self.size, min(each, window), window)
                await stream.receive(0, self.size, await stream.told(0), window)
                continue
            others = range(1, destinations + 1)
            tried = min(each, window)
            sent = await self._send(node, stream, [await stream.ready(other) for other in others], tried, window)
            each = enough(each, tried, sent.took, self.most)
            for other in others:
                await stream.tell(other, each)
            receivers = [await stream.ready(other) for other in others]
            used = node.cpu()
            sent = await self._send(node, stream, receivers, each, window)
            used = node.cpu() - used
            total = each * destinations - sent.lost
            node.row(
                destinations=destinations,
                size_bytes=self.size,
                count=each * destinations,
                **stream.losses(sent.lost),
                messages_per_s=1e9 * total / max(1, sent.took),
                cpu_ns=used // max(1, total),
            )

    async def _send(
        self, node: Node, stream: Streams, receivers: list[Awaitable[object]], count: int, window: int
    ) -> Sent:
        """Until all have acknowledged, once all are ready."""
        for receiver in receivers:
            await receiver
        begun = node.now()
        sending = [
            node.spawn(stream.send_at_once(other, self.size, count, window), f"stream to rank {other}")
            for other in range(1, len(receivers) + 1)
        ]
        sent = [await one for one in sending]
        slowest = max(one.took for one in sent)
        return Sent(slowest if any(one.lost for one in sent) else node.now() - begun, sum(one.lost for one in sent))

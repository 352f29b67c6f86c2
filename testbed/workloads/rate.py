"""Message rate: short messages, many under way, to one and to many destinations."""

from __future__ import annotations

from collections.abc import Awaitable

from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.lossy_streams import streams
from testbed.workloads.streams import Sent, Streams, enough
from testbed.workloads.workload_settings import Duration, MessageSize


class Rate(Workload):
    """Short messages per second from rank 0, to one other rank and to all at once.

    window: messages under way, of all destinations together. most: time for each measurement, which limits the number
    of messages.
    """

    bears_loss = True
    bears_restarts = False

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
                await stream.receive(0, self.size, await stream.receive_count(0), window)
                continue
            receiver_ranks = range(1, destinations + 1)
            tried = min(each, window)
            sent = await self._send(node, stream, [await stream.ready(peer) for peer in receiver_ranks], tried, window)
            each = enough(each, tried, sent.took, self.most)
            for peer in receiver_ranks:
                await stream.send_count(peer, each)
            receivers = [await stream.ready(peer) for peer in receiver_ranks]
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
        """Send until all receivers have acknowledged, once all are ready."""
        for receiver in receivers:
            await receiver
        started = node.now()
        sending = [
            node.spawn(stream.send_at_once(rank, self.size, count, window), f"stream to rank {rank}")
            for rank in range(1, len(receivers) + 1)
        ]
        sent = [await result for result in sending]
        slowest = max(result.took for result in sent)
        return Sent(
            slowest if any(result.lost for result in sent) else node.now() - started,
            sum(result.lost for result in sent),
        )

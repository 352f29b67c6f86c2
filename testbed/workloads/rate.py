"""Message rate: short messages, many in flight, to one and to many destinations."""

from __future__ import annotations

from collections.abc import Awaitable

from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.lossy_streams import streams
from testbed.workloads.streams import Sent, Streams, enough
from testbed.workloads.workload_settings import Duration, MessageSize


class Rate(Workload):
    """Short messages per second from rank 0, to one other rank and to all ranks.

    window: messages in flight, to all destinations together. most: maximum time of each measurement, which limits the
    number of messages.
    """

    supports_loss = True
    supports_restarts = False

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
            count_per_receiver = max(1, self.count // destinations)
            if comm.rank:
                await stream.receive(0, self.size, min(count_per_receiver, window), window)
                await stream.receive(0, self.size, await stream.receive_count(0), window)
                continue
            receiver_ranks = range(1, destinations + 1)
            trial_count = min(count_per_receiver, window)
            sent = await self._send(
                node, stream, [await stream.ready(peer) for peer in receiver_ranks], trial_count, window
            )
            count_per_receiver = enough(count_per_receiver, trial_count, sent.took, self.most)
            for peer in receiver_ranks:
                await stream.send_count(peer, count_per_receiver)
            receivers = [await stream.ready(peer) for peer in receiver_ranks]
            cpu_time = node.cpu()
            sent = await self._send(node, stream, receivers, count_per_receiver, window)
            cpu_time = node.cpu() - cpu_time
            total = count_per_receiver * destinations - sent.lost
            node.row(
                destinations=destinations,
                size_bytes=self.size,
                count=count_per_receiver * destinations,
                **stream.losses(sent.lost),
                messages_per_s=1e9 * total / max(1, sent.took),
                cpu_ns=cpu_time // max(1, total),
            )

    async def _send(
        self, node: Node, stream: Streams, receivers: list[Awaitable[object]], count: int, window: int
    ) -> Sent:
        """Wait until all receivers are ready, then send until all have acknowledged."""
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

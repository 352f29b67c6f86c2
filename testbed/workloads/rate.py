"""Rate of short messages, with many in flight, to one and to many destinations."""

from __future__ import annotations

from collections.abc import Awaitable

from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.lossy_streams import make_streams
from testbed.workloads.streams import StreamResult, Streams, affordable_count
from testbed.workloads.workload_settings import Duration, MessageSize


class Rate(Workload):
    """Short messages per second from rank 0, to one other rank and to all ranks.

    count: maximum number of messages. window: messages in flight, to all destinations together. most: maximum time of each
    measurement, which also limits the number of messages.
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
        stream = make_streams(comm, node, Contents(node.seed, "rate", self.size))
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
            count_per_receiver = affordable_count(count_per_receiver, trial_count, sent.took, self.most)
            for peer in receiver_ranks:
                await stream.send_count(peer, count_per_receiver)
            receivers = [await stream.ready(peer) for peer in receiver_ranks]
            cpu_time = node.cpu()
            sent = await self._send(node, stream, receivers, count_per_receiver, window)
            cpu_time = node.cpu() - cpu_time
            delivered = count_per_receiver * destinations - sent.lost
            node.row(
                destinations=destinations,
                size_bytes=self.size,
                count=count_per_receiver * destinations,
                **stream.losses(sent.lost),
                messages_per_s=1e9 * delivered / max(1, sent.took),
                cpu_ns=cpu_time // max(1, delivered),
            )

    async def _send(
        self, node: Node, stream: Streams, receivers: list[Awaitable[object]], count: int, window: int
    ) -> StreamResult:
        """Wait until all receivers are ready, then send to them until all have acknowledged. receivers: see
        `Streams.ready`, from rank 1 on. count: number of messages to each."""
        for receiver in receivers:
            await receiver
        started = node.now()
        tasks = [
            node.spawn(stream.send_at_once(rank, self.size, count, window), f"stream to rank {rank}")
            for rank in range(1, len(receivers) + 1)
        ]
        results = [await task for task in tasks]
        lost = sum(result.lost for result in results)
        # The time until now includes the waits for lost messages.
        return StreamResult(max(result.took for result in results) if lost else node.now() - started, lost)

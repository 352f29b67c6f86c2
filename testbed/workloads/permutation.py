"""Permutations: all ranks send concurrently, each to one other rank, so that each pattern shares links and switches."""

from __future__ import annotations

from typing import Literal

from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.lossy_streams import make_streams
from testbed.workloads.streams import StreamResult
from testbed.workloads.workload_settings import MessageSize

Pattern = Literal["all", "shift", "neighbour", "bisection"]


class Permutation(Workload):
    """Aggregate rate of all ranks, which send concurrently, and rates of the slowest and fastest sender.

    shift: rank r sends to rank r + by, modulo the number of ranks. neighbour: 0 exchanges with 1, 2 with 3, and so on.
    bisection: every rank of the lower half exchanges with a rank of the upper half. A rank without a partner is idle. count:
    number of messages of each rank. window: messages in flight of each rank.
    """

    supports_loss = True
    supports_restarts = False

    pattern: Pattern = "all"
    by: int = 1
    size: MessageSize = 65536
    count: int = 100
    window: int = 8

    def __post_init__(self) -> None:
        if min(self.count, self.window, self.by) < 1:
            raise ValueError("count, window and by: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        stream = make_streams(comm, node, Contents(node.seed, "permutation", self.size))
        for pattern in ("shift", "neighbour", "bisection") if self.pattern == "all" else (self.pattern,):
            destination, source = partners(pattern, comm.rank, comm.size, self.by)
            await node.barrier()
            sent = StreamResult(0)
            if destination != comm.rank:
                receiver = node.spawn(
                    stream.receive(source, self.size, self.count, self.window), f"receiver, {pattern}"
                )
                sent = await stream.send(destination, self.size, self.count, self.window)
                await receiver
            senders = [result for result in await node.gather(sent) or () if result.took]
            if senders:
                rates = [8e9 * self.size * (self.count - result.lost) / result.took for result in senders]
                lost = sum(result.lost for result in senders)
                node.row(
                    pattern=pattern,
                    senders=len(senders),
                    size_bytes=self.size,
                    count=self.count,
                    **stream.losses(lost),
                    aggregate_bit_s=8e9
                    * self.size
                    * (self.count * len(senders) - lost)
                    / max(result.took for result in senders),
                    slowest_bit_s=min(rates),
                    fastest_bit_s=max(rates),
                )


def partners(pattern: str, rank: int, size: int, by: int = 1) -> tuple[int, int]:
    """Return the rank to which `rank` sends and the rank from which it receives; `rank` itself if it has no partner."""
    if pattern == "shift":
        return (rank + by) % size, (rank - by) % size
    half = size // 2
    peer = rank ^ 1 if pattern == "neighbour" else (rank + half if rank < half else rank - half)
    if peer >= size or (pattern == "bisection" and rank >= 2 * half):
        peer = rank
    return peer, peer

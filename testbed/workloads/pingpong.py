"""Ping-pong: the time that a message takes."""

from __future__ import annotations

from testbed.workloads.contents import Contents
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.quantiles import quantiles, warm_up
from testbed.workloads.settings import Duration, Sizes

_TAG = 1
_COUNT = 2
_READY = 3


class PingPong(Workload):
    """Half the round trip between two ranks, for messages of each size, and the processor time of each message.

    most: time for one size, after which fewer round trips have to do.
    """

    sizes: Sizes = (0, 1, 4, 64, 1024, 4096, 65536)
    count: int = 1000
    peer: int = 1
    most: Duration = 2_000_000_000

    def __post_init__(self) -> None:
        if self.count < 1 or self.peer < 1:
            raise ValueError("count and peer: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        if self.peer >= comm.size:
            raise ValueError(f"peer {self.peer}: there are ranks 0 to {comm.size - 1}")
        contents = Contents(node.seed, "pingpong", max(self.sizes))
        for size in self.sizes:
            if comm.rank == 0:
                await self._ping(comm, node, contents, size)
            elif comm.rank == self.peer:
                await self._pong(comm, contents, size)

    async def _ping(self, comm: Comm, node: Node, contents: Contents, size: int) -> None:
        count = warm_up(self.count)
        samples = await self._trips(comm, node, contents, size, count)
        count = max(1, min(self.count, self.most * len(samples) // max(1, sum(samples))))
        await comm.send(count, self.peer, _COUNT)
        used = node.cpu()
        samples = await self._trips(comm, node, contents, size, count)
        used = node.cpu() - used
        node.row(size_bytes=size, count=count, **quantiles(samples, 2), cpu_ns=used // (2 * count))

    async def _trips(self, comm: Comm, node: Node, contents: Contents, size: int, count: int) -> list[int]:
        samples, buffer, now, peer = [], bytearray(size), node.now, self.peer
        await comm.Recv(None, peer, _READY)
        for number in range(count):
            begun = now()
            answer = await comm.Irecv(buffer, peer, _TAG)
            sent = await comm.Isend(contents.of(number, size), peer, _TAG)
            await answer.Wait()
            samples.append(now() - begun)
            await sent.Wait()
            contents.check(number, buffer, f"rank {peer}'s answer")
        return samples

    async def _pong(self, comm: Comm, contents: Contents, size: int) -> None:
        await self._answers(comm, contents, size, warm_up(self.count))
        count = await comm.recv(source=0, tag=_COUNT)
        assert isinstance(count, int)
        await self._answers(comm, contents, size, count)

    async def _answers(self, comm: Comm, contents: Contents, size: int, count: int) -> None:
        """A receive is begun before the answer leaves that brings its message; it has another buffer than the answer."""
        buffers = bytearray(size), bytearray(size)
        arrival = await comm.Irecv(buffers[0], 0, _TAG)
        await comm.Send(None, 0, _READY)
        for number in range(count):
            await arrival.Wait()
            sent = await comm.Isend(buffers[number % 2], 0, _TAG)
            if number + 1 < count:
                arrival = await comm.Irecv(buffers[(number + 1) % 2], 0, _TAG)
            await sent.Wait()
            contents.check(number, buffers[number % 2], "rank 0's message")

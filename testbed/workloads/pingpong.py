"""Ping-pong between two ranks: the one-way time of messages."""

from __future__ import annotations

from protocols.mpi.mpi_status import Status
from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.quantiles import quantiles, warm_up
from testbed.workloads.request_retries import MAX_TRIES, answer_retries, no_answer_error
from testbed.workloads.streams import affordable_count
from testbed.workloads.workload_settings import Duration, MessageSizes

_TAG = 1
_COUNT = 2
_READY = 3
_TRIAL = 10
"""Number of round trips of the trial, from whose time the number of further round trips is computed."""


class PingPong(Workload):
    """Half the round trip between two ranks, for messages of each size, and the processor time per message.

    count: maximum number of round trips. most: maximum time for one size, which also limits the number of round trips;
    a tenth of it limits the warm-up. retry: retransmission timeout over a protocol that loses messages; rows have the
    number of retransmissions, and times include them.
    """

    supports_loss = True
    supports_restarts = False

    sizes: MessageSizes = (0, 1, 4, 64, 1024, 4096, 65536)
    count: int = 1000
    peer: int = 1
    most: Duration = 1_000_000_000
    retry: Duration = 20_000_000

    def __post_init__(self) -> None:
        if self.count < 1 or self.peer < 1:
            raise ValueError("count and peer: 1 or more")
        if self.retry < 1:
            raise ValueError("retry: more than 0")

    async def rank(self, comm: Comm, node: Node) -> None:
        if self.peer >= comm.size:
            raise ValueError(f"peer {self.peer}: there are ranks 0 to {comm.size - 1}")
        contents = Contents(node.seed, "pingpong", max(self.sizes))
        if node.lossy:
            await self._with_retries(comm, node, contents)
            return
        for size in self.sizes:
            if comm.rank == 0:
                await self._ping(comm, node, contents, size)
            elif comm.rank == self.peer:
                await self._pong(comm, contents, size)

    def _phases(self) -> list[tuple[int, int]]:
        """Return the maximum number of round trips and the maximum time of each phase after the trial: the warm-up, unless
        the trial is long enough for one, and the measurement."""
        warm_ups = [(warm_up(self.count), self.most // 10)] if warm_up(self.count) > _TRIAL else []
        return [*warm_ups, (self.count, self.most)]

    async def _ping(self, comm: Comm, node: Node, contents: Contents, size: int) -> None:
        samples = await self._trips(comm, node, contents, size, _TRIAL)
        count = cpu_time = 0
        for max_trips, time_limit in self._phases():
            count = affordable_count(max_trips, len(samples), sum(samples), time_limit)
            await comm.send(count, self.peer, _COUNT)
            cpu_time = node.cpu()
            samples = await self._trips(comm, node, contents, size, count)
        cpu_time = node.cpu() - cpu_time
        node.row(size_bytes=size, count=count, **quantiles(samples, 2), cpu_ns=cpu_time // (2 * count))

    async def _trips(self, comm: Comm, node: Node, contents: Contents, size: int, count: int) -> list[int]:
        samples, buffer, now, peer = [], bytearray(size), node.now, self.peer
        await comm.Recv(None, peer, _READY)
        for number in range(count):
            started = now()
            answer = await comm.Irecv(buffer, peer, _TAG)
            sent = await comm.Isend(contents.of(number, size), peer, _TAG)
            await answer.Wait()
            samples.append(now() - started)
            await sent.Wait()
            contents.check(number, buffer, f"rank {peer}'s answer")
        return samples

    async def _pong(self, comm: Comm, contents: Contents, size: int) -> None:
        await self._answer(comm, contents, size, _TRIAL)
        for _ in self._phases():
            count = await comm.recv(source=0, tag=_COUNT)
            assert isinstance(count, int)
            await self._answer(comm, contents, size, count)

    async def _answer(self, comm: Comm, contents: Contents, size: int, count: int) -> None:
        """Answer `count` messages. The receive of the next message is posted, in a second buffer, before the answer that
        triggers that message is awaited."""
        buffers = bytearray(size), bytearray(size)
        receive = await comm.Irecv(buffers[0], 0, _TAG)
        await comm.Send(None, 0, _READY)
        for number in range(count):
            await receive.Wait()
            sent = await comm.Isend(buffers[number % 2], 0, _TAG)
            if number + 1 < count:
                receive = await comm.Irecv(buffers[(number + 1) % 2], 0, _TAG)
            await sent.Wait()
            contents.check(number, buffers[number % 2], "rank 0's message")

    async def _with_retries(self, comm: Comm, node: Node, contents: Contents) -> None:
        first = 0
        for size in self.sizes:
            if comm.rank == self.peer:
                await answer_retries(comm, node, contents, (0,), size=max(self.sizes), reply=size)
            elif comm.rank == 0:
                await node.heard(self.peer)
                client = _RetryingPing(self, comm, node, contents, size, first)
                timer = node.spawn(client.retransmit(), "time-out")
                samples = await client.trips(_TRIAL)
                count = cpu_time = 0
                for max_trips, time_limit in self._phases():
                    count = affordable_count(max_trips, len(samples), sum(samples), time_limit)
                    client.retransmissions, cpu_time = 0, node.cpu()
                    samples = await client.trips(count)
                cpu_time = node.cpu() - cpu_time
                timer.cancel()
                await node.say(None, self.peer)
                node.row(
                    size_bytes=size,
                    count=count,
                    asked_again=client.retransmissions,
                    **quantiles(samples, 2),
                    cpu_ns=cpu_time // (2 * count),
                )
                first = client.number + 1


class _RetryingPing:
    """Client that sends requests one at a time, and retransmits them after a timeout. number: number of the last
    request. retransmissions: number of retransmissions."""

    def __init__(self, workload: PingPong, comm: Comm, node: Node, contents: Contents, size: int, first: int) -> None:
        self.number = first - 1
        self.retransmissions = 0
        self._workload = workload
        self._comm = comm
        self._node = node
        self._contents = contents
        self._size = size
        self._is_waiting = False

    async def trips(self, count: int) -> list[int]:
        comm, contents, size, peer, now = self._comm, self._contents, self._size, self._workload.peer, self._node.now
        samples, buffer, status = [], bytearray(max(self._workload.sizes)), Status()
        for _ in range(count):
            started = now()
            self.number = number = self.number + 1
            answer = await comm.Irecv(buffer, peer)
            await comm.Send(contents.of(number, size), peer, number)
            self._is_waiting = True
            await answer.Wait(status)
            while status.tag != number:  # a late or duplicate answer
                await comm.Recv(buffer, peer, status=status)
            self._is_waiting = False
            samples.append(now() - started)
            contents.check(number, memoryview(buffer)[: status.count], f"rank {peer}'s answer")
        return samples

    async def retransmit(self) -> None:
        """Retransmit a request that has not been answered within the timeout."""
        retry, peer = self._workload.retry, self._workload.peer
        tries = 1
        while True:
            number = self.number
            await self._node.sleep(retry)
            if self.number != number or not self._is_waiting:
                tries = 1
                continue
            if tries == MAX_TRIES:
                raise no_answer_error(number, self._size, peer, retry)
            tries += 1
            self.retransmissions += 1
            await self._comm.Send(self._contents.of(number, self._size), peer, number)

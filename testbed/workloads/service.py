"""A service under an open-loop load: the arrival times of requests do not depend on the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from protocols.mpi.requests import Request
from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.quantiles import quantiles
from testbed.workloads.request_retries import RetryingClient, answer_retries
from testbed.workloads.request_server import MAX_RECEIVES, REPLY, REQUEST, Server
from testbed.workloads.workload_settings import Duration, MessageSize

_SECOND: Final = 1_000_000_000


class Service(Workload):
    """Requests to rank 0 from all other ranks as a Poisson process: response times, measured from the request's due time.

    rate: requests per second of all clients together. requests: number of requests of all clients together. size,
    reply: bytes of a request and of its answer. work: the server's processor time for a request. A late client sends
    due requests at once, and their delay is part of the response time, which a closed loop would omit. retry:
    retransmission timeout over a protocol that loses messages; the row has the number of retransmissions.
    """

    supports_loss = True
    supports_restarts = False

    rate: float = 1000.0
    requests: int = 1000
    size: MessageSize = 64
    reply: MessageSize = 1024
    work: Duration = 0
    retry: Duration = 20_000_000

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.requests < 1:
            raise ValueError("rate: more than 0; requests: 1 or more")
        if self.retry < 1:
            raise ValueError("retry: more than 0")

    async def rank(self, comm: Comm, node: Node) -> None:
        contents = Contents(node.seed, "service", max(self.size, self.reply) + 1)
        clients = comm.size - 1
        count = self.requests // clients + (comm.rank <= self.requests % clients)
        await node.barrier()
        if comm.rank == 0:
            await self._serve(comm, node, contents)
            gathered = await node.gather((0, [], 0))
            assert gathered is not None
            elapsed = max(time for time, _, _ in gathered)
            times = [time for _, client_times, _ in gathered for time in client_times]
            retransmissions = (
                {"asked_again": sum(retransmitted for _, _, retransmitted in gathered)} if node.lossy else {}
            )
            achieved = _SECOND * len(times) / max(1, elapsed)
            node.row(
                offered_per_s=self.rate,
                answered_per_s=achieved,
                count=len(times),
                **retransmissions,
                work_ns=self.work,
                **quantiles(times),
            )
        else:
            send_requests = self._with_retries if node.lossy else self._request
            await node.gather(await send_requests(comm, node, contents, count))

    async def _serve(self, comm: Comm, node: Node, contents: Contents) -> None:
        if node.lossy:
            clients = range(1, comm.size)
            await answer_retries(
                comm, node, contents, clients, size=self.size, reply=self.reply, work=self.work, receives=MAX_RECEIVES
            )
            return
        server = Server(comm, node, contents, self.size, self.reply, self.work)
        await server.begin(MAX_RECEIVES)
        await server.serve(comm.size - 1)

    async def _request(self, comm: Comm, node: Node, contents: Contents, count: int) -> tuple[int, list[int], int]:
        """Send requests when they are due; return the total nanoseconds, the response times, and the number of
        retransmissions, 0."""
        now = node.now
        times: list[int] = []

        async def finish(number: int, due: int, answer: bytearray, receive: Request, send: Request) -> None:
            await receive.Wait()
            times.append(now() - due)
            await send.Wait()
            contents.check(number, answer, "the server's answer")

        started = now()
        finish_tasks = []
        async for number, due in self._arrivals(comm, node, count):
            answer = bytearray(self.reply)
            receive = await comm.Irecv(answer, 0, REPLY)
            send = await comm.Isend(contents.of(number, self.size), 0, REQUEST)
            finish_tasks.append(node.spawn(finish(number, due, answer, receive, send), f"request {number}"))
        for task in finish_tasks:
            await task
        elapsed = now() - started
        await comm.Send(contents.of(0, self.size + 1), 0, REQUEST)  # the additional byte marks the last request
        return elapsed, times, 0

    async def _with_retries(self, comm: Comm, node: Node, contents: Contents, count: int) -> tuple[int, list[int], int]:
        await node.heard(0)
        client = RetryingClient(comm, node, contents, 0, size=self.size, reply=self.reply, retry=self.retry)
        await client.begin()
        started = node.now()
        in_flight = []
        async for _, due in self._arrivals(comm, node, count):
            in_flight.append((due, await client.ask()))
            await node.sleep(0)  # so that a late client receives answers, too
        times = [await answered - due for due, answered in in_flight]
        elapsed = node.now() - started
        await client.end()
        return elapsed, times, client.retransmissions

    async def _arrivals(self, comm: Comm, node: Node, count: int) -> AsyncIterator[tuple[int, int]]:
        """Yield each request of a client when it is due: its number and due time."""
        rng, now = node.random("arrivals"), node.now
        client_rate = self.rate / (comm.size - 1) / _SECOND
        due = now()
        for number in range(count):
            due += round(rng.expovariate(client_rate))
            if due > now():
                await node.sleep(due - now())
            yield number, due

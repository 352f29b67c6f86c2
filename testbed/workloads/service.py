"""A service with an open loop: requests come when they come, whether or not the answers keep up."""

from __future__ import annotations

from typing import Final

from protocols.mpi.requests import Request
from testbed.workloads.answering import ANSWER, ASK, MOST, Server
from testbed.workloads.contents import Contents
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.quantiles import quantiles
from testbed.workloads.settings import Duration, Size

_SECOND: Final = 1_000_000_000


class Service(Workload):
    """Requests to rank 0 from all others as a Poisson process: response times, counted from when each request was due.

    rate: requests per second, of all clients together. requests: of all clients together. size: of a request, reply: of its
    answer. work: processor time that the server needs for one. A client that is late sends what is due at once, and the
    wait counts: what a closed loop would leave out.
    """

    rate: float = 1000.0
    requests: int = 1000
    size: Size = 64
    reply: Size = 1024
    work: Duration = 0

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.requests < 1:
            raise ValueError("rate: more than 0; requests: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        contents = Contents(node.seed, "service", max(self.size, self.reply) + 1)
        clients = comm.size - 1
        count = self.requests // clients + (comm.rank <= self.requests % clients)
        await node.barrier()
        if comm.rank == 0:
            server = Server(comm, node, contents, self.size, self.reply, self.work)
            await server.begin(MOST)
            await server.serve(clients)
            told = await node.gather((0, []))
            assert told is not None
            took = max(time for time, _ in told)
            times = [time for _, some in told for time in some]
            achieved = _SECOND * len(times) / max(1, took)
            node.row(
                offered_per_s=self.rate,
                answered_per_s=achieved,
                count=len(times),
                work_ns=self.work,
                **quantiles(times),
            )
        else:
            await node.gather(await self._ask(comm, node, contents, count))

    async def _ask(self, comm: Comm, node: Node, contents: Contents, count: int) -> tuple[int, list[int]]:
        """Nanoseconds in all, and response times."""
        chance, now = node.random("arrivals"), node.now
        times: list[int] = []

        async def finish(number: int, due: int, answer: bytearray, answered: Request, sent: Request) -> None:
            await answered.Wait()
            times.append(now() - due)
            await sent.Wait()
            contents.check(number, answer, "the server's answer")

        begun = due = now()
        each = self.rate / (comm.size - 1) / _SECOND
        finishing = []
        for number in range(count):
            due += round(chance.expovariate(each))
            if due > now():
                await node.sleep(due - now())
            answer = bytearray(self.reply)
            answered = await comm.Irecv(answer, 0, ANSWER)
            sent = await comm.Isend(contents.of(number, self.size), 0, ASK)
            finishing.append(node.spawn(finish(number, due, answer, answered, sent), f"request {number}"))
        for task in finishing:
            await task
        took = now() - begun
        await comm.Send(contents.of(0, self.size + 1), 0, ASK)  # one byte longer: the last
        return took, times

"""Contention: N clients ask one server as fast as they can; what each of them gets."""

from __future__ import annotations

from collections import deque

from protocols.mpi.requests import Request
from testbed.workloads.answering import ANSWER, ASK, MOST, Server
from testbed.workloads.contents import Contents
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.quantiles import fairness, quantiles
from testbed.workloads.settings import Duration, Size


class Contention(Workload):
    """1, 2, 4, ... N clients to rank 0, for a time each: aggregate and per-client rate, Jain's index, round trips.

    A request has `size` bytes, its answer none; every client has `window` requests under way.
    """

    size: Size = 4096
    window: int = 4
    time: Duration = 500_000_000

    def __post_init__(self) -> None:
        if self.window < 1 or self.time <= 0:
            raise ValueError("window: 1 or more; time: more than 0")

    async def rank(self, comm: Comm, node: Node) -> None:
        contents = Contents(node.seed, "contention", self.size + 1)
        server = Server(comm, node, contents, self.size)
        if comm.rank == 0:
            await server.begin(min(MOST, (comm.size - 1) * self.window))
        for clients in _steps(comm.size - 1):
            await node.barrier()
            if comm.rank == 0:
                await server.serve(clients)
                mine: tuple[float, list[int]] = (0.0, [])
            elif comm.rank <= clients:
                mine = await self._ask(comm, node, contents)
            else:
                mine = (0.0, [])
            told = await node.gather(mine)
            if told is None:
                continue
            rates = [8.0 * self.size * rate for rate, _ in told[1 : clients + 1]]
            node.row(
                clients=clients,
                size_bytes=self.size,
                aggregate_bit_s=sum(rates),
                requests_per_s=sum(rate for rate, _ in told),
                slowest_bit_s=min(rates),
                fastest_bit_s=max(rates),
                fairness=fairness(rates),
                **quantiles([trip for _, trips in told for trip in trips]),
            )

    async def _ask(self, comm: Comm, node: Node, contents: Contents) -> tuple[float, list[int]]:
        """Requests per second, and their round trips in nanoseconds."""
        now, trips = node.now, []
        under_way: deque[tuple[int, Request, Request]] = deque()
        begun, number = now(), 0
        while True:
            if len(under_way) == self.window:
                began, sent, answered = under_way.popleft()
                await answered.Wait()
                trips.append(now() - began)
                await sent.Wait()
            if now() >= begun + self.time:
                break
            answer = await comm.Irecv(None, 0, ANSWER)
            under_way.append((now(), await comm.Isend(contents.of(number, self.size), 0, ASK), answer))
            number += 1
        for began, sent, answered in under_way:
            await answered.Wait()
            trips.append(now() - began)
            await sent.Wait()
        rate = 1e9 * number / max(1, now() - begun)
        await comm.Send(contents.of(0, self.size + 1), 0, ASK)
        return rate, trips


def _steps(clients: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({2**power for power in range(clients.bit_length())} | {clients})

"""Contention: N clients ask one server as fast as they can; each client's share."""

from __future__ import annotations

from collections import deque
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.requests import Request
from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.quantiles import fairness, quantiles
from testbed.workloads.request_retries import RetryingClient, answer_retries
from testbed.workloads.request_server import ANSWER, ASK, MAX, Server
from testbed.workloads.workload_settings import Duration, MessageSize

_SERIES: Final = 1 << 20  # between the numbers of one time's requests and the next one's


class Contention(Workload):
    """1, 2, 4, ... N clients to rank 0, for a time each: aggregate and per-client rate, Jain's index, round trips.

    A request has `size` bytes, its answer none; every client has `window` requests under way. retry: retransmission
    timeout over a protocol that loses messages; rows say how many requests were sent again.
    """

    bears_loss = True
    bears_restarts = False

    size: MessageSize = 4096
    window: int = 4
    time: Duration = 500_000_000
    retry: Duration = 20_000_000

    def __post_init__(self) -> None:
        if self.window < 1 or min(self.time, self.retry) <= 0:
            raise ValueError("window: 1 or more; time and retry: more than 0")

    async def rank(self, comm: Comm, node: Node) -> None:
        contents = Contents(node.seed, "contention", self.size + 1)
        server = Server(comm, node, contents, self.size)
        receives = min(MAX, (comm.size - 1) * self.window)
        if comm.rank == 0 and not node.lossy:
            await server.begin(receives)
        for clients in _steps(comm.size - 1):
            await node.barrier()
            measured: tuple[float, list[int], int] = (0.0, [], 0)
            if comm.rank == 0 and node.lossy:
                await answer_retries(
                    comm, node, contents, range(1, clients + 1), size=self.size, reply=0, receives=receives
                )
            elif comm.rank == 0:
                await server.serve(clients)
            elif comm.rank <= clients:
                measured = (
                    await self._with_retries(comm, node, contents, clients * _SERIES)
                    if node.lossy
                    else await self._request(comm, node, contents)
                )
            gathered = await node.gather(measured)
            if gathered is None:
                continue
            rates = [8.0 * self.size * rate for rate, _, _ in gathered[1 : clients + 1]]
            again = {"asked_again": sum(repeated for _, _, repeated in gathered)} if node.lossy else {}
            node.row(
                clients=clients,
                size_bytes=self.size,
                aggregate_bit_s=sum(rates),
                **again,
                requests_per_s=sum(rate for rate, _, _ in gathered),
                slowest_bit_s=min(rates),
                fastest_bit_s=max(rates),
                fairness=fairness(rates),
                **quantiles([trip for _, trips, _ in gathered for trip in trips]),
            )

    async def _request(self, comm: Comm, node: Node, contents: Contents) -> tuple[float, list[int], int]:
        """Return the requests per second, their round trips in nanoseconds, and how many were sent again."""
        now, trips = node.now, []
        under_way: deque[tuple[int, Request, Request]] = deque()
        started, number = now(), 0
        while True:
            if len(under_way) == self.window:
                start_time, sent, answered = under_way.popleft()
                await answered.Wait()
                trips.append(now() - start_time)
                await sent.Wait()
            if now() >= started + self.time:
                break
            answer = await comm.Irecv(None, 0, ANSWER)
            under_way.append((now(), await comm.Isend(contents.of(number, self.size), 0, ASK), answer))
            number += 1
        for start_time, sent, answered in under_way:
            await answered.Wait()
            trips.append(now() - start_time)
            await sent.Wait()
        rate = 1e9 * number / max(1, now() - started)
        await comm.Send(contents.of(0, self.size + 1), 0, ASK)
        return rate, trips, 0

    async def _with_retries(
        self, comm: Comm, node: Node, contents: Contents, first: int
    ) -> tuple[float, list[int], int]:
        """Ask over a protocol that loses messages. first: number of the first request."""
        await node.heard(0)
        now, trips = node.now, []
        asking = RetryingClient(comm, node, contents, 0, size=self.size, reply=0, retry=self.retry, first=first)
        await asking.begin()
        under_way: deque[tuple[int, Completion[int]]] = deque()
        started, number = now(), 0
        while now() < started + self.time:
            if len(under_way) == self.window:
                start_time, answered = under_way.popleft()
                trips.append(await answered - start_time)
            under_way.append((now(), await asking.ask()))
            number += 1
        for start_time, answered in under_way:
            trips.append(await answered - start_time)
        rate = 1e9 * number / max(1, now() - started)
        await asking.end()
        return rate, trips, asking.again


def _steps(clients: int) -> list[int]:
    """Return 1, 2, 4, ... and `clients`."""
    return sorted({2**power for power in range(clients.bit_length())} | {clients})

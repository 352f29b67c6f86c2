"""Contention: rates of N clients that send requests to one server as fast as possible."""

from __future__ import annotations

from collections import deque
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.requests import Request
from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.quantiles import fairness, quantiles
from testbed.workloads.request_retries import RetryingClient, answer_retries
from testbed.workloads.request_server import MAX_RECEIVES, REPLY, REQUEST, Server
from testbed.workloads.workload_settings import Duration, MessageSize

_NUMBERS_PER_STEP: Final = 1 << 20  # minimum distance of a client's first request numbers in two measurements


class Contention(Workload):
    """Requests of 1, 2, 4, ... and all clients to rank 0: aggregate, slowest and fastest rate, Jain's index, round trips.

    A request has `size` bytes, its answer 0; every client has `window` requests in flight. time: duration of the measurement
    for each number of clients. retry: retransmission timeout over a protocol that loses messages; rows have the number of
    retransmissions.
    """

    supports_loss = True
    supports_restarts = False

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
        receives = min(MAX_RECEIVES, (comm.size - 1) * self.window)
        if comm.rank == 0 and not node.lossy:
            await server.begin(receives)
        for clients in _client_counts(comm.size - 1):
            await node.barrier()
            measurement: tuple[float, list[int], int] = (0.0, [], 0)
            if comm.rank == 0 and node.lossy:
                await answer_retries(
                    comm, node, contents, range(1, clients + 1), size=self.size, reply=0, receives=receives
                )
            elif comm.rank == 0:
                await server.serve(clients)
            elif comm.rank <= clients:
                measurement = (
                    await self._with_retries(comm, node, contents, clients * _NUMBERS_PER_STEP)
                    if node.lossy
                    else await self._request(comm, node, contents)
                )
            gathered = await node.gather(measurement)
            if gathered is None:
                continue
            rates = [8.0 * self.size * rate for rate, _, _ in gathered[1 : clients + 1]]
            retransmissions = (
                {"asked_again": sum(retransmitted for _, _, retransmitted in gathered)} if node.lossy else {}
            )
            node.row(
                clients=clients,
                size_bytes=self.size,
                aggregate_bit_s=sum(rates),
                **retransmissions,
                requests_per_s=sum(rate for rate, _, _ in gathered),
                slowest_bit_s=min(rates),
                fastest_bit_s=max(rates),
                fairness=fairness(rates),
                **quantiles([trip for _, trips, _ in gathered for trip in trips]),
            )

    async def _request(self, comm: Comm, node: Node, contents: Contents) -> tuple[float, list[int], int]:
        """Send requests for `time`; return requests per second, round trips in nanoseconds, and the number of
        retransmissions, 0."""
        now, trips = node.now, []
        in_flight: deque[tuple[int, Request, Request]] = deque()
        started, number = now(), 0
        while True:
            if len(in_flight) == self.window:
                start_time, sent, answered = in_flight.popleft()
                await answered.Wait()
                trips.append(now() - start_time)
                await sent.Wait()
            if now() >= started + self.time:
                break
            answer = await comm.Irecv(None, 0, REPLY)
            in_flight.append((now(), await comm.Isend(contents.of(number, self.size), 0, REQUEST), answer))
            number += 1
        for start_time, sent, answered in in_flight:
            await answered.Wait()
            trips.append(now() - start_time)
            await sent.Wait()
        rate = 1e9 * number / max(1, now() - started)
        await comm.Send(contents.of(0, self.size + 1), 0, REQUEST)
        return rate, trips, 0

    async def _with_retries(
        self, comm: Comm, node: Node, contents: Contents, first: int
    ) -> tuple[float, list[int], int]:
        """Send requests as `_request`, over a protocol that loses messages. first: number of the first request, equal for
        all clients."""
        await node.heard(0)
        now, trips = node.now, []
        client = RetryingClient(comm, node, contents, 0, size=self.size, reply=0, retry=self.retry, first=first)
        await client.begin()
        in_flight: deque[tuple[int, Completion[int]]] = deque()
        started, number = now(), 0
        while now() < started + self.time:
            if len(in_flight) == self.window:
                start_time, answered = in_flight.popleft()
                trips.append(await answered - start_time)
            in_flight.append((now(), await client.ask()))
            number += 1
        for start_time, answered in in_flight:
            trips.append(await answered - start_time)
        rate = 1e9 * number / max(1, now() - started)
        await client.end()
        return rate, trips, client.retransmissions


def _client_counts(clients: int) -> list[int]:
    """Return 1, 2, 4, ... and `clients`."""
    return sorted({2**power for power in range(clients.bit_length())} | {clients})

"""LogP signature (Culler, Liu, Martin, Yoshikawa, "Assessing fast network interfaces", IEEE Micro 16(1), 1996).

Rank 0 issues M requests back to back, with D nanoseconds of work after each, and rank 1 answers each. The signature is
the average time per request against M and D. A single request at D = 0 shows the send overhead o_s, and many at D = 0
show the gap g. Many requests at a large D, when answers are received in between, show o_s + o_r + D. The latency is the
rest of half a round trip: L = RTT/2 - o_s - o_r. Long messages add LogGP's G, the time per byte (Alexandrov, Ionescu,
Schauser, Scheiman, 1995): the slope of a least-squares line, with its residual.
"""

from __future__ import annotations

from statistics import linear_regression, median

from protocols.mpi.requests import Request
from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.workload_settings import MessageSize, MessageSizes

_REQUEST, _ANSWER, _READY = 1, 2, 3  # tags


class LogP(Workload):
    """LogP's parameters o_s, o_r, g and L between ranks 0 and 1, LogGP's G, and the underlying signature.

    size: bytes of requests and answers. bursts: the values of M; o_s is the time per request at the smallest, which should
    be 1, and g comes from the smallest and the largest. rounds: number of bursts of each kind, of which the median is used.
    sizes: bytes of the messages for G.
    """

    supports_restarts = False

    size: MessageSize = 8
    bursts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    rounds: int = 20
    sizes: MessageSizes = (1024, 4096, 16384, 65536)

    def __post_init__(self) -> None:
        if self.rounds < 1 or len(set(self.bursts)) < 2 or min(self.bursts) < 1:
            raise ValueError("rounds: 1 or more; bursts: two or more different ones, each 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        if comm.rank > 1:
            return
        contents = Contents(node.seed, "logp", max(self.size, *self.sizes))
        if comm.rank:
            await self._answer_all(comm, contents)
            return
        client = _Client(comm, node, contents)
        trip = median([await client.trip(self.size) for _ in range(self.rounds)])
        delay = max(1000, round(2 * trip))  # long enough for answers to arrive before the next request
        signature: dict[tuple[int, int], float] = {}
        for work in (0, delay):
            for burst in sorted(self.bursts):
                times = [await client.burst(burst, work, self.size) for _ in range(self.rounds)]
                time_per_request = median([elapsed / burst for elapsed, _ in times])
                signature[work, burst] = median([(elapsed - worked) / burst for elapsed, worked in times])
                node.row(measure="signature", requests=burst, work_ns=work, each_ns=round(time_per_request))
        shortest, longest = min(self.bursts), max(self.bursts)
        send = signature[0, shortest]
        receive = max(0.0, signature[delay, longest] - send)
        half_trip = trip / 2
        gap = (signature[0, longest] * longest - signature[0, shortest] * shortest) / (longest - shortest)
        half_trips = [median([await client.trip(size) for _ in range(self.rounds)]) / 2 for size in self.sizes]
        line: dict[str, float] = {}
        if len(set(self.sizes)) > 1:
            slope, base = linear_regression(self.sizes, half_trips)
            errors = [time - base - slope * size for size, time in zip(self.sizes, half_trips, strict=True)]
            line = {"G_ns": slope, "residual_ns": (sum(error * error for error in errors) / len(errors)) ** 0.5}
        node.row(
            measure="parameters", o_s_ns=round(send), o_r_ns=round(receive), g_ns=round(gap),
            L_ns=round(half_trip - send - receive), half_trip_ns=round(half_trip), **line,
        )  # fmt: skip

    async def _answer_all(self, comm: Comm, contents: Contents) -> None:
        """Answer all requests, in the order in which rank 0 sends them."""
        for _ in range(self.rounds):
            await _answer(comm, contents, 1, self.size)
        for _ in range(2):
            for burst in sorted(self.bursts):
                for _ in range(self.rounds):
                    await _answer(comm, contents, burst, self.size)
        for size in self.sizes:
            for _ in range(self.rounds):
                await _answer(comm, contents, 1, size)


class _Client:
    """Client on rank 0, which sends requests to rank 1."""

    def __init__(self, comm: Comm, node: Node, contents: Contents) -> None:
        self._comm = comm
        self._node = node
        self._contents = contents

    async def trip(self, size: int) -> int:
        """Measure a round trip, in nanoseconds."""
        comm, now = self._comm, self._node.now
        answer = bytearray(size)
        await comm.Recv(None, 1, _READY)
        started = now()
        receive = await comm.Irecv(answer, 1, _ANSWER)
        send = await comm.Isend(self._contents.of(0, size), 1, _REQUEST)
        await receive.Wait()
        elapsed = now() - started
        await send.Wait()
        self._contents.check(0, answer, "rank 1's answer")
        return elapsed

    async def burst(self, count: int, work: int, size: int) -> tuple[int, int]:
        """Send `count` requests, each followed by `work` nanoseconds of work. Answers are received as soon as the processor
        is free. Return the nanoseconds until the end of the last request's work, and the nanoseconds of all the work."""
        comm, node = self._comm, self._node
        answers = [bytearray(size) for _ in range(count)]
        receives = [await comm.Irecv(answer, 1, _ANSWER) for answer in answers]
        receiver = node.spawn(_wait_for_all(receives), "answers")
        await comm.Recv(None, 1, _READY)
        sends: list[Request] = []
        worked = 0
        started = node.now()
        for number in range(count):
            sends.append(await comm.Isend(self._contents.of(number, size), 1, _REQUEST))
            if work:
                work_start = node.now()
                await node.compute(work)
                worked += node.now() - work_start
            if count > 1:
                await node.sleep(0)
        elapsed = node.now() - started
        for send in sends:
            await send.Wait()
        await receiver
        for number, answer in enumerate(answers):
            self._contents.check(number, answer, "rank 1's answer")
        return elapsed, worked


async def _wait_for_all(receives: list[Request]) -> None:
    for receive in receives:
        await receive.Wait()


async def _answer(comm: Comm, contents: Contents, count: int, size: int) -> None:
    """Answer `count` requests with their own contents."""
    requests = [bytearray(size) for _ in range(count)]
    receives = [await comm.Irecv(request, 0, _REQUEST) for request in requests]
    await comm.Send(None, 0, _READY)
    answers = []
    for number, receive in enumerate(receives):
        await receive.Wait()
        answers.append(await comm.Isend(requests[number], 0, _ANSWER))
    for number, answer in enumerate(answers):
        await answer.Wait()
        contents.check(number, requests[number], "rank 0's request")

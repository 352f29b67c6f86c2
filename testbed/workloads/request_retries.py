"""Requests with retransmission, over a protocol that loses messages: each is sent again until its answer comes, or
given up.

A request has its number as its tag, and its answer has the same tag, which identifies late and duplicate answers. A
server answers every request, including repeated ones, until all clients have reported, over a lossless channel, that
they ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.mpi_status import Status
from protocols.mpi.requests import Request
from testbed.workloads.form import Comm, Contents, Node, VerificationError
from testbed.workloads.lossy_streams import end_receives

MAX_TRIES: Final = 250
"""How often a request is sent before it is given up."""

_RECEIVES: Final = 16  # of a client
_LOOKS: Final = 4  # checks for timeouts within one timeout


def gave_up(number: int, size: int, server: int, retry: int) -> VerificationError:
    return VerificationError(
        f"rank {server} has not answered request {number} of {size} bytes, which was sent {MAX_TRIES} times, every "
        f"{retry / 1e6:g} ms: all of them were lost, or all answers"
    )


class RetryingClient:
    """Client of one server. again: requests that were sent again; late: answers to requests already answered."""

    def __init__(
        self,
        comm: Comm,
        node: Node,
        contents: Contents,
        server: int,
        *,
        size: int,
        reply: int,
        retry: int,
        first: int = 0,
    ) -> None:
        """size: of requests, reply: of answers, bytes. retry: retransmission timeout, nanoseconds. first: number of the
        first request; numbers of several clients must differ."""
        self.again = 0
        self.late = 0
        self._comm = comm
        self._node = node
        self._contents = contents
        self._server = server
        self._size = size
        self._reply = reply
        self._retry = retry
        self._next = first
        self._open: dict[int, _Open] = {}
        self._receives: deque[tuple[bytearray, Request]] = deque()

    async def begin(self) -> None:
        for _ in range(_RECEIVES):
            buffer = bytearray(self._reply)
            self._receives.append((buffer, await self._comm.Irecv(buffer)))
        self._taking = self._node.spawn(self._take(), "answers")
        self._watching = self._node.spawn(self._watch(), "time-outs")

    async def ask(self) -> Completion[int]:
        """Send a request. The completion gives the time of its answer, nanoseconds."""
        number = self._next
        self._next += 1
        completion: Completion[int] = Completion("the answer to request %d", number)
        self._open[number] = _Open(completion, self._node.now())
        await self._comm.Send(self._contents.of(number, self._size), self._server, number)
        return completion

    async def end(self) -> None:
        """End, when all requests are answered."""
        self._watching.cancel()
        await end_receives(self._comm, _RECEIVES)
        await self._taking
        await self._node.say(None, self._server)

    async def _take(self) -> None:
        comm, receives, status = self._comm, self._receives, Status()
        while True:
            buffer, answer = receives.popleft()
            await answer.Wait(status)
            if status.source == comm.rank:
                break
            pending = self._open.pop(status.tag, None)
            if pending is None:
                self.late += 1
            else:
                pending.completion.complete(self._node.now())
                self._contents.check(status.tag, memoryview(buffer)[: status.count], "the server's answer")
            receives.append((buffer, await comm.Irecv(buffer)))
        for _, answer in receives:
            await answer.Wait()

    async def _watch(self) -> None:
        node = self._node
        while True:
            await node.sleep(max(1, self._retry // _LOOKS))
            for number, pending in list(self._open.items()):
                if node.now() < pending.sent + self._retry or number not in self._open:
                    continue
                if pending.tries == MAX_TRIES:
                    raise gave_up(number, self._size, self._server, self._retry)
                pending.tries += 1
                pending.sent = node.now()
                self.again += 1
                await self._comm.Send(self._contents.of(number, self._size), self._server, number)


class _Open:
    """A request without an answer. sent: when it was sent last."""

    __slots__ = ("completion", "sent", "tries")

    def __init__(self, completion: Completion[int], sent: int) -> None:
        self.completion = completion
        self.sent = sent
        self.tries = 1


async def answer_retries(
    comm: Comm,
    node: Node,
    contents: Contents,
    askers: Collection[int],
    *,
    size: int,
    reply: int,
    work: int = 0,
    receives: int = _RECEIVES,
) -> None:
    """Answer all requests of these ranks until each has ended. work: nanoseconds of processor time for each request.
    Raises VerificationError."""
    status = Status()
    waiting: deque[tuple[bytearray, Request]] = deque()
    for _ in range(receives):
        buffer = bytearray(size)
        waiting.append((buffer, await comm.Irecv(buffer)))
    for asker in askers:
        await node.say(None, asker)
    ending = node.spawn(_end(comm, node, askers, receives), "the end of all requests")
    while True:
        buffer, request = waiting.popleft()
        await request.Wait(status)
        if status.source == comm.rank:
            break
        if work:
            await node.compute(work)
        await comm.Send(contents.of(status.tag, reply), status.source, status.tag)
        contents.check(status.tag, memoryview(buffer)[: status.count], f"rank {status.source}'s request")
        waiting.append((buffer, await comm.Irecv(buffer)))
    for _, request in waiting:
        await request.Wait()
    await ending


async def _end(comm: Comm, node: Node, askers: Collection[int], receives: int) -> None:
    for asker in askers:
        await node.heard(asker)
    await end_receives(comm, receives)

"""Requests over a protocol that loses messages: each is sent again until its answer is there, or given up.

A request has its number as its tag, and its answer the same one: an answer that comes late or twice is known by it. A server
answers whatever comes, what came before too, until all who ask have said beside it, without loss, that it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.requests import Request
from protocols.mpi.status import Status
from testbed.workloads.contents import Contents
from testbed.workloads.form import Comm, Node, VerificationError
from testbed.workloads.lossy_streams import end_receives

MOST_TRIES: Final = 250
"""How often a request is sent before it is given up."""

_RECEIVES: Final = 16  # of who asks
_LOOKS: Final = 4  # at what is open, in the time after which it is sent again


def given_up(number: int, size: int, server: int, retry: int) -> VerificationError:
    return VerificationError(
        f"rank {server} has not answered request {number} of {size} bytes, which was sent {MOST_TRIES} times, every "
        f"{retry / 1e6:g} ms: all of them were lost, or all answers"
    )


class Asking:
    """Who asks one server. again: requests that were sent again; late: answers to what had been answered."""

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
        """size: of requests, reply: of answers, bytes. retry: nanoseconds. first: number of the first request; none has
        one that another one had."""
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
        """Send a request. Done when its answer is there, with the time."""
        number = self._next
        self._next += 1
        over: Completion[int] = Completion("the answer to request %d", number)
        self._open[number] = _Open(over, self._node.now())
        await self._comm.Send(self._contents.of(number, self._size), self._server, number)
        return over

    async def end(self) -> None:
        """All is answered."""
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
            one = self._open.pop(status.tag, None)
            if one is None:
                self.late += 1
            else:
                one.over.complete(self._node.now())
                self._contents.check(status.tag, memoryview(buffer)[: status.count], "the server's answer")
            receives.append((buffer, await comm.Irecv(buffer)))
        for _, answer in receives:
            await answer.Wait()

    async def _watch(self) -> None:
        node = self._node
        while True:
            await node.sleep(max(1, self._retry // _LOOKS))
            for number, one in list(self._open.items()):
                if node.now() < one.sent + self._retry or number not in self._open:
                    continue
                if one.tries == MOST_TRIES:
                    raise given_up(number, self._size, self._server, self._retry)
                one.tries += 1
                one.sent = node.now()
                self.again += 1
                await self._comm.Send(self._contents.of(number, self._size), self._server, number)


class _Open:
    """A request that has no answer yet. sent: when, the last time."""

    __slots__ = ("over", "sent", "tries")

    def __init__(self, over: Completion[int], sent: int) -> None:
        self.over = over
        self.sent = sent
        self.tries = 1


async def answer_again(
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
    """Answer all requests of these ranks until each has said that it is over. work: nanoseconds of the processor for each.
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

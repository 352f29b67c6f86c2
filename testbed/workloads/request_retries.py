"""Requests with retransmission, over a protocol that loses messages: a request is retransmitted until its answer arrives,
or the maximum number of tries is reached.

The tag of a request and of its answer is the request's number, which identifies late and duplicate answers. A server answers
every request, including retransmitted ones, until all clients have reported their end over a reliable channel.
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
"""Maximum number of transmissions of a request."""

_RECEIVES: Final = 16  # posted receives of a client
_CHECKS_PER_TIMEOUT: Final = 4  # checks for expired requests within one timeout


def no_answer_error(number: int, size: int, server: int, retry: int) -> VerificationError:
    """Make the error for a request that has reached the maximum number of tries. retry: timeout, nanoseconds."""
    return VerificationError(
        f"rank {server} has not answered request {number} of {size} bytes, which was sent {MAX_TRIES} times, every "
        f"{retry / 1e6:g} ms: all of them were lost, or all answers"
    )


class RetryingClient:
    """Client of one server. retransmissions: number of retransmissions."""

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
        """size, reply: sizes of requests and answers, bytes. retry: retransmission timeout, nanoseconds. first: number of
        the first request. Clients of one rank must use different numbers, since answers to an earlier client may be late;
        those of different ranks need not, since each receives only its own answers."""
        self.retransmissions = 0
        self._comm = comm
        self._node = node
        self._contents = contents
        self._server = server
        self._size = size
        self._reply = reply
        self._retry = retry
        self._next = first
        self._pending: dict[int, _PendingRequest] = {}
        self._receives: deque[tuple[bytearray, Request]] = deque()

    async def begin(self) -> None:
        """Post receives, and start the tasks that handle answers and timeouts."""
        for _ in range(_RECEIVES):
            buffer = bytearray(self._reply)
            self._receives.append((buffer, await self._comm.Irecv(buffer)))
        self._receiver = self._node.spawn(self._receive(), "answers")
        self._timer = self._node.spawn(self._retransmit(), "time-outs")

    async def ask(self) -> Completion[int]:
        """Send a request. The completion's result is the time of its answer, nanoseconds."""
        number = self._next
        self._next += 1
        completion: Completion[int] = Completion("the answer to request %d", number)
        self._pending[number] = _PendingRequest(completion, self._node.now())
        await self._comm.Send(self._contents.of(number, self._size), self._server, number)
        return completion

    async def end(self) -> None:
        """Stop the tasks, and report the end to the server. All requests must have been answered."""
        self._timer.cancel()
        await end_receives(self._comm, _RECEIVES)
        await self._receiver
        await self._node.say(None, self._server)

    async def _receive(self) -> None:
        comm, receives, status = self._comm, self._receives, Status()
        while True:
            buffer, answer = receives.popleft()
            await answer.Wait(status)
            if status.source == comm.rank:
                break
            pending = self._pending.pop(status.tag, None)
            if pending is not None:  # otherwise the answer is a duplicate
                pending.completion.complete(self._node.now())
                self._contents.check(status.tag, memoryview(buffer)[: status.count], "the server's answer")
            receives.append((buffer, await comm.Irecv(buffer)))
        for _, answer in receives:
            await answer.Wait()

    async def _retransmit(self) -> None:
        node = self._node
        while True:
            await node.sleep(max(1, self._retry // _CHECKS_PER_TIMEOUT))
            for number, pending in list(self._pending.items()):
                if node.now() < pending.sent + self._retry or number not in self._pending:
                    continue
                if pending.tries == MAX_TRIES:
                    raise no_answer_error(number, self._size, self._server, self._retry)
                pending.tries += 1
                pending.sent = node.now()
                self.retransmissions += 1
                await self._comm.Send(self._contents.of(number, self._size), self._server, number)


class _PendingRequest:
    """A request without an answer. sent: time of the last transmission."""

    __slots__ = ("completion", "sent", "tries")

    def __init__(self, completion: Completion[int], sent: int) -> None:
        self.completion = completion
        self.sent = sent
        self.tries = 1


async def answer_retries(
    comm: Comm,
    node: Node,
    contents: Contents,
    clients: Collection[int],
    *,
    size: int,
    reply: int,
    work: int = 0,
    receives: int = _RECEIVES,
) -> None:
    """Answer all requests of these ranks until each has reported its end. size, reply: sizes of requests and answers, bytes.
    work: nanoseconds of processor time for each request. receives: number of posted receives. Raises
    VerificationError."""
    status = Status()
    posted: deque[tuple[bytearray, Request]] = deque()
    for _ in range(receives):
        buffer = bytearray(size)
        posted.append((buffer, await comm.Irecv(buffer)))
    for client in clients:
        await node.say(None, client)
    end_task = node.spawn(_await_end(comm, node, clients, receives), "the end of all requests")
    while True:
        buffer, request = posted.popleft()
        await request.Wait(status)
        if status.source == comm.rank:
            break
        if work:
            await node.compute(work)
        await comm.Send(contents.of(status.tag, reply), status.source, status.tag)
        contents.check(status.tag, memoryview(buffer)[: status.count], f"rank {status.source}'s request")
        posted.append((buffer, await comm.Irecv(buffer)))
    for _, request in posted:
        await request.Wait()
    await end_task


async def _await_end(comm: Comm, node: Node, clients: Collection[int], receives: int) -> None:
    """Wait until all clients have reported their end, then end the remaining receives."""
    for client in clients:
        await node.heard(client)
    await end_receives(comm, receives)

"""Server of workloads in which clients send requests to one rank. Requests are verified."""

from __future__ import annotations

from collections import deque
from typing import Final

from protocols.mpi.mpi_status import Status
from protocols.mpi.requests import Request
from testbed.workloads.form import Comm, Contents, Node, VerificationError

REQUEST: Final = 1
REPLY: Final = 2
"""Tags of requests and answers."""
MAX_RECEIVES: Final = 128
"""Maximum number of the server's posted receives, and of answers in progress."""


class Server:
    """Server that answers requests of `size` bytes with `reply` bytes after `work` nanoseconds of processor time each.

    A client's last request is one byte longer than the others, and is not answered.
    """

    def __init__(self, comm: Comm, node: Node, contents: Contents, size: int, reply: int = 0, work: int = 0) -> None:
        self._comm = comm
        self._node = node
        self._contents = contents
        self._size = size
        self._reply = reply
        self._work = work
        self._receives: deque[tuple[bytearray, Request]] = deque()

    async def begin(self, count: int) -> None:
        """Post `count` receives."""
        for _ in range(count):
            buffer = bytearray(self._size + 1)
            self._receives.append((buffer, await self._comm.Irecv(buffer, tag=REQUEST)))

    async def serve(self, clients: int) -> None:
        """Answer until `clients` clients have sent their last request. Raises VerificationError."""
        comm, contents, receives, status = self._comm, self._contents, self._receives, Status()
        numbers: dict[int, int] = {}
        answers: deque[Request] = deque()
        while clients:
            buffer, request = receives.popleft()
            await request.Wait(status)
            if status.count > self._size:
                clients -= 1
            else:
                number = numbers.get(status.source, 0)
                numbers[status.source] = number + 1
                if status.count < self._size:
                    raise VerificationError(f"request {number} of rank {status.source} has {status.count} bytes")
                contents.check(number, memoryview(buffer)[: self._size], f"from rank {status.source}")
                if self._work:
                    await self._node.compute(self._work)
                reply = contents.of(number, self._reply) if self._reply else None
                answers.append(await comm.Isend(reply, status.source, REPLY))
                if len(answers) > MAX_RECEIVES:
                    await answers.popleft().Wait()
            receives.append((buffer, await comm.Irecv(buffer, tag=REQUEST)))
        for answer in answers:
            await answer.Wait()

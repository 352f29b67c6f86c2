"""Random traffic between all ranks, which verify that every message arrives exactly once, in order, with its content."""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Final

from protocols.mpi.requests import Request
from testbed.engine.tasks import Task
from testbed.workloads.form import Comm, Contents, Node, VerificationError, Workload
from testbed.workloads.quantiles import log_uniform, quantiles
from testbed.workloads.workload_settings import Duration, MessageSize

_HEAD: Final = struct.Struct("!IIII")  # sender, number to this receiver with this tag, bytes of content, flags
_MAX: Final = 32_768  # number of tags that every MPI supports; also the limit of sends in progress and posted receives
_LAST: Final = 1
"""Flag of the sender's last message to this receiver with this tag."""
_EMPTY: Final = 2
"""Flag of a last message without content, if the sender has no message for this receiver with this tag."""


class RandomTraffic(Workload):
    """Messages of random sizes to random ranks with random tags. Each must arrive exactly once, unchanged, and in order for
    each sender and tag.

    messages: number of messages of each rank. largest: maximum size of the content, bytes. tags: number of tags.
    outstanding: maximum number of sends of a rank in progress, and number of posted receives per tag. over: time over which
    each rank's messages are spread; 0: as fast as possible.
    """

    checked = True
    supports_restarts = False

    messages: int = 100
    largest: MessageSize = 20_000
    tags: int = 3
    outstanding: int = 8
    over: Duration = 0

    def __post_init__(self) -> None:
        if self.messages < 0 or not 1 <= self.tags <= _MAX or not 1 <= self.outstanding <= _MAX:
            raise ValueError(f"messages: 0 or more; tags and outstanding: 1 to {_MAX:,}")

    async def rank(self, comm: Comm, node: Node) -> dict[str, int]:
        contents = Contents(node.seed, "random", self.largest)
        receivers = [_Receiver(comm, tag, contents, self.largest, self.outstanding) for tag in range(self.tags)]
        for receiver in receivers:
            await receiver.begin()
        await node.barrier()
        started = node.now()
        tasks = [node.spawn(receiver.run(), f"receiver of tag {receiver.tag}") for receiver in receivers]
        times = await self._send(comm, node, contents)
        for task in tasks:
            await task
        received = sum(receiver.received for receiver in receivers)
        moved = sum(receiver.moved for receiver in receivers)
        node.row(
            sent=self.messages, received=received, moved_bytes=moved, took_ns=node.now() - started, **quantiles(times)
        )
        return {"sent": self.messages, "received": received}

    async def _send(self, comm: Comm, node: Node, contents: Contents) -> list[int]:
        """Send this rank's messages; return the duration of each send, in nanoseconds."""
        rng, rank, now = node.random(), comm.rank, node.now
        numbers: dict[tuple[int, int], int] = {}
        in_flight: deque[Task[None]] = deque()
        times: list[int] = []

        async def finish(start_time: int, request: Request) -> None:
            await request.Wait()
            times.append(now() - start_time)

        async def post(peer: int, tag: int, size: int, flags: int) -> None:
            if len(in_flight) == self.outstanding:
                await in_flight.popleft()
            number = numbers.get((peer, tag), 0)
            numbers[peer, tag] = number + 1
            message = _HEAD.pack(rank, number, size, flags) + contents.of(_shift(rank, number), size)
            start_time, request = now(), await comm.Isend(message, peer, tag)
            in_flight.append(node.spawn(finish(start_time, request), "the completion of a send"))

        plan = self._plan(rng, rank, comm.size)
        last = {(peer, tag): index for index, (peer, tag, _) in enumerate(plan)}
        started = now()
        for index, (peer, tag, size) in enumerate(plan):
            wait = started + self.over * index // self.messages - now()
            if self.over and wait > 0:
                await node.sleep(wait)
            await post(peer, tag, size, _LAST if last[peer, tag] == index else 0)
        for distance in range(1, comm.size):
            peer = (rank + distance) % comm.size
            for tag in range(self.tags):
                if (peer, tag) not in last:
                    await post(peer, tag, 0, _LAST | _EMPTY)
        for task in in_flight:
            await task
        return times

    def _plan(self, rng: random.Random, rank: int, size: int) -> list[tuple[int, int, int]]:
        """Draw receiver, tag and size in bytes of each message."""
        return [
            (
                (rank + rng.randrange(1, size)) % size,
                rng.randrange(self.tags),
                log_uniform(rng.random(), self.largest),
            )
            for _ in range(self.messages)
        ]


class _Receiver:
    """Receiver of all messages with one tag. Receives match messages in the order of posting. received: number of messages.
    moved: bytes of their contents."""

    def __init__(self, comm: Comm, tag: int, contents: Contents, largest: int, outstanding: int) -> None:
        self.tag = tag
        self.received = 0
        self.moved = 0
        self._comm = comm
        self._contents = contents
        self._buffers = [bytearray(_HEAD.size + largest) for _ in range(outstanding)]
        self._posted: deque[tuple[bytearray, Request]] = deque()
        self._expected = [0] * comm.size
        self._open_senders = comm.size - 1  # number of ranks that have not sent their last message

    async def begin(self) -> None:
        for buffer in self._buffers:
            self._posted.append((buffer, await self._comm.Irecv(buffer, tag=self.tag)))

    async def run(self) -> None:
        """Receive until every sender's last message has arrived. Raises VerificationError."""
        while self._open_senders:
            buffer, request = self._posted.popleft()
            await request.Wait()
            sender, number, size, flags = _HEAD.unpack_from(buffer)
            if not 0 <= sender < len(self._expected):
                raise VerificationError(f"a message under tag {self.tag} names rank {sender} as its sender")
            expected = self._expected[sender]
            if number != expected:
                fault = "came twice" if number < expected else f"came before number {expected}, or that was lost"
                raise VerificationError(f"message {number} of rank {sender} under tag {self.tag} {fault}")
            self._expected[sender] = number + 1
            content = memoryview(buffer)[_HEAD.size : _HEAD.size + size]
            self._contents.check(_shift(sender, number), content, f"from rank {sender} under tag {self.tag}")
            if flags & _LAST:
                self._open_senders -= 1
            if not flags & _EMPTY:
                self.received += 1
                self.moved += size
            if self._open_senders:
                self._posted.append((buffer, await self._comm.Irecv(buffer, tag=self.tag)))


def _shift(rank: int, number: int) -> int:
    """Return the number that selects a message's content."""
    return rank * 101 + number

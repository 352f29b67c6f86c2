"""Random messages between nodes that crash and restart, for scenarios with crash, restart and reset faults."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError
from protocols.mpi.requests import Request
from testbed.workloads.form import Comm, Contents, Node, VerificationError, Workload
from testbed.workloads.quantiles import log_uniform
from testbed.workloads.workload_settings import Duration, MessageSize

_HEAD: Final = struct.Struct("!IIIIQ")
"""Sender, its incarnation, number of the message to this receiver, bytes of the content, remaining nanoseconds."""
_SECOND: Final = 1_000_000_000
_RECEIVES: Final = 8  # posted receives of a node


class Churn(Workload):
    """Random messages between nodes that may crash and restart. Each must arrive at most once, unchanged, and in order for
    each incarnation of its sender.

    time: duration of sending. rate: average number of messages per second of each node. largest: maximum size of the
    content, bytes. outstanding: maximum number of sends in progress to one peer, so that a dead peer does not block others.
    settle: time for which nodes receive after the end of sending.

    A restarted node sends until the other nodes end, since each message contains the remaining time. Each node's row is that
    of its last incarnation: number of the incarnation (lives); numbers of its messages that were sent, were returned with an
    error, and were pending at the end (unanswered); of sends that failed after they were reported as done (taken_back); of
    messages received; of receives that failed with their sender (broken); and of senders' incarnations from which messages
    were received (from_lives).
    """

    checked = True
    supports_restarts = True

    time: Duration = _SECOND
    rate: float = 500.0
    largest: MessageSize = 4_000
    outstanding: int = 4
    settle: Duration = 200_000_000

    def __post_init__(self) -> None:
        if self.time < 1 or not 0 < self.rate <= 1e9 or self.outstanding < 1:
            raise ValueError("time and rate: more than 0; outstanding: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> dict[str, int]:
        incarnation = _Incarnation(self, comm, node)
        receiver = node.spawn(incarnation.receive_all(), "receives")
        await incarnation.send_all()
        await node.sleep(self.settle)
        receiver.cancel()
        await incarnation.cancel_receives()
        counts = incarnation.counts()
        node.row(**counts)
        return counts


class _Incarnation:
    """One incarnation of a node."""

    def __init__(self, churn: Churn, comm: Comm, node: Node) -> None:
        self._churn = churn
        self._comm = comm
        self._node = node
        self._end = node.now() + churn.time
        self._contents = Contents(node.seed, "churn", churn.largest)
        self._chance = node.random(f"life {node.starts}")
        self._numbers: Counter[int] = Counter()  # number of the next message, by receiver
        self._in_flight: Counter[int] = Counter()  # number of sends in progress, by receiver
        self._last_received: dict[int, tuple[int, int]] = {}  # sender -> incarnation and number of its last message
        self._receives: deque[tuple[bytearray, Request]] = deque()
        self._sender_incarnations: set[tuple[int, int]] = set()
        self._counts: Counter[str] = Counter()

    async def send_all(self) -> None:
        """Send until the end, which a received message may advance."""
        node, chance, peer_count = self._node, self._chance, self._comm.size - 1
        while (remaining := self._end - node.now()) > 0:
            await node.sleep(min(remaining, round(chance.expovariate(self._churn.rate) * _SECOND)))
            destination = (self._comm.rank + 1 + chance.randrange(peer_count)) % self._comm.size
            if self._in_flight[destination] < self._churn.outstanding and self._end > node.now():
                await self._send(destination, log_uniform(chance.random(), self._churn.largest))

    async def _send(self, destination: int, size: int) -> None:
        node, number = self._node, self._numbers[destination]
        self._numbers[destination] += 1
        head = _HEAD.pack(self._comm.rank, node.starts, number, size, max(0, self._end - node.now()))
        message = head + bytes(self._contents.of(_shift(self._comm.rank, node.starts, number), size))
        self._in_flight[destination] += 1
        self._counts["begun"] += 1
        request = await self._call(partial(self._comm.Isend, message, destination))
        node.spawn(self._wait_for_send(request, destination), "the end of a send")

    async def _wait_for_send(self, request: Request, destination: int) -> None:
        self._counts["sent" if await _completes(request) else "returned"] += 1
        self._in_flight[destination] -= 1

    async def receive_all(self) -> None:
        """Receive and verify until cancelled. Receives complete in order. Raises VerificationError."""
        for _ in range(_RECEIVES):
            await self._post_receive(bytearray(_HEAD.size + self._churn.largest))
        while True:
            buffer, request = self._receives[0]
            succeeded = await _completes(request)
            self._receives.popleft()
            if succeeded:
                self._verify(memoryview(buffer))
            self._counts["received" if succeeded else "broken"] += 1
            await self._post_receive(buffer)

    async def _post_receive(self, buffer: bytearray) -> None:
        self._receives.append((buffer, await self._call(partial(self._comm.Irecv, buffer))))

    async def _call(self, call: Callable[[], Coroutine[Any, Any, Request]]) -> Request:
        """Start a transfer. The call is repeated if it raises the error of an earlier send."""
        while True:
            try:
                return await call()
            except MPIError as error:
                if error.error_class != ERR_PROC_FAILED:
                    raise
                self._counts["taken back"] += 1

    def _verify(self, buffer: memoryview) -> None:
        sender, incarnation, number, size, remaining = _HEAD.unpack_from(buffer)
        if not 0 <= sender < self._comm.size:
            raise VerificationError(f"a message names rank {sender} as its sender")
        last = self._last_received.get(sender, (0, -1))
        if (incarnation, number) <= last:
            raise VerificationError(
                f"message {number} of incarnation {incarnation} of rank {sender} arrived twice, or after message {last[1]} "
                f"of incarnation {last[0]}"
            )
        self._last_received[sender] = incarnation, number
        self._sender_incarnations.add((sender, incarnation))
        self._contents.check(
            _shift(sender, incarnation, number), buffer[_HEAD.size : _HEAD.size + size], f"from rank {sender}"
        )
        self._end = min(self._end, self._node.now() + remaining)

    async def cancel_receives(self) -> None:
        """Cancel the receives. They are not awaited, since one may have received a part of a dead node's message."""
        for _, request in self._receives:
            if request.active:
                await request.Cancel()

    def counts(self) -> dict[str, int]:
        """Return the counts of the node's row."""
        counts = self._counts
        return {
            "lives": self._node.starts,
            "sent": counts["sent"],
            "returned": counts["returned"],
            "unanswered": counts["begun"] - counts["sent"] - counts["returned"],
            "taken_back": counts["taken back"],
            "received": counts["received"],
            "broken": counts["broken"],
            "from_lives": len(self._sender_incarnations),
        }


async def _completes(request: Request) -> bool:
    """Wait for a transfer; return whether it succeeded. Raises MPIError for an error other than the death of a peer."""
    try:
        await request.Wait()
    except MPIError as error:
        if error.error_class != ERR_PROC_FAILED:
            raise
        return False
    return True


def _shift(rank: int, incarnation: int, number: int) -> int:
    """Return the number that selects a message's content."""
    return rank * 101 + incarnation * 37 + number

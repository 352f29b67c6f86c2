"""Messages between nodes that come and go, for use beside crashes, restarts and resets."""

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

_HEAD: Final = struct.Struct("!IIIIQ")  # sender, its life, number by receiver, bytes of content, nanoseconds left
_SECOND: Final = 1_000_000_000
_RECEIVES: Final = 8


class Churn(Workload):
    """Random messages between nodes that may crash and start again, verified: content, exactly once, and order for each
    life of each sender.

    time: duration of sending. rate: messages per second of each node, on average. largest: content of one, bytes.
    outstanding: sends to one peer that may be under way: one that is gone blocks no other. settle: how long nodes then
    still receive.

    A restarted node goes on until the others end: each message carries the time left. Each node's row is that of its
    last life: its number (lives); of its messages how many were sent, returned with an error, and had not ended at the
    end (unanswered), and how often a reported send turned out to have failed (taken_back); how many were received, how
    many receives failed with their sender (broken), and from how many lives of other nodes (from_lives).
    """

    checked = True
    bears_restarts = True

    time: Duration = _SECOND
    rate: float = 500.0
    largest: MessageSize = 4_000
    outstanding: int = 4
    settle: Duration = 200_000_000

    def __post_init__(self) -> None:
        if self.time < 1 or not 0 < self.rate <= 1e9 or self.outstanding < 1:
            raise ValueError("time and rate: more than 0; outstanding: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> dict[str, int]:
        life = _Life(self, comm, node)
        listening = node.spawn(life.listen(), "receives")
        await life.talk()
        await node.sleep(self.settle)
        listening.cancel()
        await life.cancel_receives()
        counts = life.account()
        node.row(**counts)
        return counts


class _Life:
    """One life of a node."""

    def __init__(self, churn: Churn, comm: Comm, node: Node) -> None:
        self._churn = churn
        self._comm = comm
        self._node = node
        self._end = node.now() + churn.time
        self._contents = Contents(node.seed, "churn", churn.largest)
        self._chance = node.random(f"life {node.starts}")
        self._numbers: Counter[int] = Counter()  # of the next message, by receiver
        self._under_way: Counter[int] = Counter()  # sends, by receiver
        self._heard: dict[int, tuple[int, int]] = {}  # by sender, life and number of its last message
        self._receives: deque[tuple[bytearray, Request]] = deque()
        self._lives: set[tuple[int, int]] = set()
        self._counts: Counter[str] = Counter()

    async def talk(self) -> None:
        """Send until the end, which received messages may bring forward."""
        node, chance, others = self._node, self._chance, self._comm.size - 1
        while (remaining := self._end - node.now()) > 0:
            await node.sleep(min(remaining, round(chance.expovariate(self._churn.rate) * _SECOND)))
            to = (self._comm.rank + 1 + chance.randrange(others)) % self._comm.size
            if self._under_way[to] < self._churn.outstanding and self._end > node.now():
                await self._send(to, log_uniform(chance.random(), self._churn.largest))

    async def _send(self, to: int, size: int) -> None:
        node, number = self._node, self._numbers[to]
        self._numbers[to] += 1
        head = _HEAD.pack(self._comm.rank, node.starts, number, size, max(0, self._end - node.now()))
        message = head + bytes(self._contents.of(_shift(self._comm.rank, node.starts, number), size))
        self._under_way[to] += 1
        self._counts["begun"] += 1
        request = await self._call(partial(self._comm.Isend, message, to))
        node.spawn(self._ended(request, to), "the end of a send")

    async def _ended(self, request: Request, to: int) -> None:
        self._counts["sent" if await _arrives(request) else "returned"] += 1
        self._under_way[to] -= 1

    async def listen(self) -> None:
        """Receive and verify until cancelled. Earlier receives get earlier messages. Raises VerificationError."""
        for _ in range(_RECEIVES):
            await self._begin(bytearray(_HEAD.size + self._churn.largest))
        while True:
            buffer, request = self._receives[0]
            whole = await _arrives(request)
            self._receives.popleft()
            if whole:
                self._verify(memoryview(buffer))
            self._counts["received" if whole else "broken"] += 1
            await self._begin(buffer)

    async def _begin(self, buffer: bytearray) -> None:
        self._receives.append((buffer, await self._call(partial(self._comm.Irecv, buffer))))

    async def _call(self, call: Callable[[], Coroutine[Any, Any, Request]]) -> Request:
        """Begin a transfer. The call raises where an earlier send has failed after all, and is then repeated."""
        while True:
            try:
                return await call()
            except MPIError as error:
                if error.error_class != ERR_PROC_FAILED:
                    raise
                self._counts["taken back"] += 1

    def _verify(self, buffer: memoryview) -> None:
        sender, life, number, size, left = _HEAD.unpack_from(buffer)
        if not 0 <= sender < self._comm.size:
            raise VerificationError(f"a message says it is from rank {sender}")
        last = self._heard.get(sender, (0, -1))
        if (life, number) <= last:
            raise VerificationError(
                f"message {number} of life {life} of rank {sender} came twice, or behind message {last[1]} of life {last[0]}"
            )
        self._heard[sender] = life, number
        self._lives.add((sender, life))
        self._contents.check(
            _shift(sender, life, number), buffer[_HEAD.size : _HEAD.size + size], f"from rank {sender}"
        )
        self._end = min(self._end, self._node.now() + left)

    async def cancel_receives(self) -> None:
        """Cancel the receives. One that has begun to get a message of a node that is gone is not awaited."""
        for _, request in self._receives:
            if request.active:
                await request.Cancel()

    def account(self) -> dict[str, int]:
        counts = self._counts
        return {
            "lives": self._node.starts,
            "sent": counts["sent"],
            "returned": counts["returned"],
            "unanswered": counts["begun"] - counts["sent"] - counts["returned"],
            "taken_back": counts["taken back"],
            "received": counts["received"],
            "broken": counts["broken"],
            "from_lives": len(self._lives),
        }


async def _arrives(request: Request) -> bool:
    """Wait for a transfer; whether it succeeded. Raises MPIError for an error other than the death of a peer."""
    try:
        await request.Wait()
    except MPIError as error:
        if error.error_class != ERR_PROC_FAILED:
            raise
        return False
    return True


def _shift(rank: int, life: int, number: int) -> int:
    """Return the number of a message's content."""
    return rank * 101 + life * 37 + number

"""Streams over a protocol that loses messages: as fast as the sender can, with lost messages counted.

Each message has its number as its tag, which identifies duplicate and late ones. The sender reports their end over a
lossless channel; messages missing some time later are lost. That time does not count: nothing was transferred in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import Final

from protocols.mpi.mpi_errors import ERR_TRUNCATE, MPIError
from protocols.mpi.mpi_status import Status
from testbed.workloads.form import Comm, Contents, Node
from testbed.workloads.streams import Sent, Streams

QUIET: Final = 20_000_000
"""Nanoseconds without a message after the end was reported, after which missing messages count as lost."""
MAX: Final = 1 << 20
"""Largest number of messages of a stream."""

_DEAF: Final = 65_536  # bytes sent before incoming messages are received
_OVERHEAD: Final = 1_024  # bytes that the kernel needs of a buffer for each message
_OF_RECEIVER: Final = 1  # topic of its words; the sender's have the usual one
_SERIES: Final = (
    1 << 10
)  # streams with distinct tags: a message of one is not mistaken for a later one's within that many


def streams(comm: Comm, node: Node, contents: Contents) -> Streams:
    """Return the streams that the protocol needs."""
    return (LossyStreams if node.lossy else Streams)(comm, node, contents)


class LossyStreams(Streams):
    """Streams over a protocol that loses messages. The window is the receiver's alone: the sender is never slowed
    down."""

    def __init__(self, comm: Comm, node: Node, contents: Contents) -> None:
        super().__init__(comm, node, contents)
        self._received = 0  # streams
        self._first: dict[int, int] = {}  # by receiver, the tag of the first message to it

    async def ready(self, peer: int) -> Awaitable[object]:
        return self._node.spawn(self._hear(peer), f"what rank {peer} says")

    async def _hear(self, peer: int) -> None:
        self._first[peer] = await self._node.heard(peer, _OF_RECEIVER)

    async def send_at_once(self, peer: int, size: int, count: int, window: int) -> Sent:  # noqa: ARG002
        if count > MAX:
            raise ValueError(f"count: at most {MAX:,} over a protocol that loses messages")
        comm, node, contents, first = self._comm, self._node, self._contents, self._first[peer]
        started, unheard = node.now(), 0
        for number in range(count):
            await comm.Send(contents.of(number, size), peer, first + number)
            unheard += size + _OVERHEAD
            if unheard > _DEAF:  # receive the other direction's messages
                await node.sleep(0)
                unheard = 0
        sending = node.now() - started
        await node.say(count, peer)
        lost, idle = await node.heard(peer, _OF_RECEIVER)
        return Sent(max(sending, node.now() - started - idle), lost)

    async def receive(self, peer: int, size: int, count: int, window: int) -> int:
        comm, node, contents, status = self._comm, self._node, self._contents, Status()
        first = (self._received % _SERIES) * MAX
        self._received += 1
        buffers = [bytearray(size) for _ in range(min(count, window))]
        under_way = deque([(buffer, await comm.Irecv(buffer)) for buffer in buffers])
        stream = _Coming(node, peer)
        await node.say(first, peer, _OF_RECEIVER)
        ending = node.spawn(stream.end(comm, len(buffers)), f"the end of a stream from rank {peer}")
        seen, sender = bytearray(count), f"from rank {peer}"
        while True:
            buffer, arrival = under_way.popleft()
            try:
                await arrival.Wait(status)
            except MPIError as error:
                if error.error_class != ERR_TRUNCATE:  # a late message of a stream of longer ones is truncated
                    raise
            number = status.tag - first
            if status.source == comm.rank:
                break
            if status.source == peer and 0 <= number < count and status.count == size and not status.error:
                contents.check(number, buffer, sender)
                stream.last = node.now()
                stream.came += not seen[number]
                seen[number] = 1
            under_way.append((buffer, await comm.Irecv(buffer)))
        for _, arrival in under_way:
            await arrival.Wait()
        lost, idle = await ending
        await node.say((lost, idle), peer, _OF_RECEIVER)
        return lost

    async def send_count(self, peer: int, count: int) -> None:
        await self._node.say(count, peer)

    async def receive_count(self, peer: int) -> int:
        count = await self._node.heard(peer)
        assert isinstance(count, int)
        return count

    def losses(self, lost: int) -> dict[str, int]:
        return {"lost": lost}


class _Coming:
    """An incoming stream. came: messages, each counted once. last: when the last one came."""

    __slots__ = ("_node", "_peer", "came", "last")

    def __init__(self, node: Node, peer: int) -> None:
        self._node = node
        self._peer = peer
        self.came = 0
        self.last = node.now()

    async def end(self, comm: Comm, receives: int) -> tuple[int, int]:
        """Wait until no more messages can be expected, and end the remaining receives by messages to ourselves. Return
        the number of lost messages, and the nanoseconds spent waiting for them."""
        node = self._node
        count = await node.heard(self._peer)
        since = node.now()
        while self.came < count and (left := max(since, self.last) + QUIET - node.now()) > 0:
            await node.sleep(left)
        idle = node.now() - self.last if self.came < count else 0
        await end_receives(comm, receives)
        return count - self.came, idle


async def end_receives(comm: Comm, count: int) -> None:
    """End receives from any source by messages to ourselves, which are never lost."""
    for _ in range(count):
        await comm.Send(None, comm.rank)

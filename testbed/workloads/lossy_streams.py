"""Streams over a protocol that loses messages: there is no flow control, and lost messages are counted.

The tag of a message is its number plus the first tag of its stream, which identifies duplicate and late messages. The
sender reports the end of the stream over a reliable channel; messages that are still missing after `QUIET` count as lost.
The measured time does not include this waiting time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import Final

from protocols.mpi.mpi_errors import ERR_TRUNCATE, MPIError
from protocols.mpi.mpi_status import Status
from testbed.workloads.form import Comm, Contents, Node
from testbed.workloads.streams import StreamResult, Streams

QUIET: Final = 20_000_000
"""Nanoseconds without a message after the reported end of the stream, after which missing messages count as lost."""
MAX_MESSAGES: Final = 1 << 20
"""Maximum number of messages of a stream."""

_MAX_UNRECEIVED: Final = 65_536  # bytes to send before incoming messages are received
_OVERHEAD: Final = 1_024  # bytes of the kernel's buffer for each message, besides the content
_RECEIVER_TOPIC: Final = 1  # topic of the receiver's control messages; the sender uses topic 0
_STREAM_TAGS: Final = 1 << 10  # number of consecutive streams with distinct tags, so that late messages are recognized


def make_streams(comm: Comm, node: Node, contents: Contents) -> Streams:
    """Make the streams of a rank, for a protocol that is reliable or loses messages."""
    return (LossyStreams if node.lossy else Streams)(comm, node, contents)


class LossyStreams(Streams):
    """Streams over a protocol that loses messages. The window only limits the number of posted receives, not the sender."""

    def __init__(self, comm: Comm, node: Node, contents: Contents) -> None:
        super().__init__(comm, node, contents)
        self._received_streams = 0
        self._first_tags: dict[int, int] = {}  # receiver -> tag of the first message to it

    async def ready(self, peer: int) -> Awaitable[object]:
        return self._node.spawn(self._receive_first_tag(peer), f"control messages of rank {peer}")

    async def _receive_first_tag(self, peer: int) -> None:
        self._first_tags[peer] = await self._node.heard(peer, _RECEIVER_TOPIC)

    async def send_at_once(self, peer: int, size: int, count: int, window: int) -> StreamResult:  # noqa: ARG002
        if count > MAX_MESSAGES:
            raise ValueError(f"count: at most {MAX_MESSAGES:,} over a protocol that loses messages")
        comm, node, contents, first = self._comm, self._node, self._contents, self._first_tags[peer]
        started, unreceived = node.now(), 0
        for number in range(count):
            await comm.Send(contents.of(number, size), peer, first + number)
            unreceived += size + _OVERHEAD
            if unreceived > _MAX_UNRECEIVED:  # receive the other direction's messages
                await node.sleep(0)
                unreceived = 0
        send_time = node.now() - started
        await node.say(count, peer)
        lost, idle = await node.heard(peer, _RECEIVER_TOPIC)
        return StreamResult(max(send_time, node.now() - started - idle), lost)

    async def receive(self, peer: int, size: int, count: int, window: int) -> int:
        comm, node, contents, status = self._comm, self._node, self._contents, Status()
        first = (self._received_streams % _STREAM_TAGS) * MAX_MESSAGES
        self._received_streams += 1
        buffers = [bytearray(size) for _ in range(min(count, window))]
        in_flight = deque([(buffer, await comm.Irecv(buffer)) for buffer in buffers])
        stream = _IncomingStream(node, peer)
        await node.say(first, peer, _RECEIVER_TOPIC)
        end_task = node.spawn(stream.await_end(comm, len(buffers)), f"the end of a stream from rank {peer}")
        is_received, origin = bytearray(count), f"from rank {peer}"
        while True:
            buffer, receive = in_flight.popleft()
            try:
                await receive.Wait(status)
            except MPIError as error:
                if error.error_class != ERR_TRUNCATE:  # a late message of a stream of longer ones is truncated
                    raise
            number = status.tag - first
            if status.source == comm.rank:
                break
            if status.source == peer and 0 <= number < count and status.count == size and not status.error:
                contents.check(number, buffer, origin)
                stream.last_time = node.now()
                stream.received_count += not is_received[number]
                is_received[number] = 1
            in_flight.append((buffer, await comm.Irecv(buffer)))
        for _, receive in in_flight:
            await receive.Wait()
        lost, idle = await end_task
        await node.say((lost, idle), peer, _RECEIVER_TOPIC)
        return lost

    async def send_count(self, peer: int, count: int) -> None:
        await self._node.say(count, peer)

    async def receive_count(self, peer: int) -> int:
        count = await self._node.heard(peer)
        assert isinstance(count, int)
        return count

    def losses(self, lost: int) -> dict[str, int]:
        return {"lost": lost}


class _IncomingStream:
    """An incoming stream. received_count: number of distinct messages received. last_time: time of the last message."""

    __slots__ = ("_node", "_peer", "last_time", "received_count")

    def __init__(self, node: Node, peer: int) -> None:
        self._node = node
        self._peer = peer
        self.received_count = 0
        self.last_time = node.now()

    async def await_end(self, comm: Comm, receives: int) -> tuple[int, int]:
        """Wait until no more messages are expected, and end the remaining receives by messages to this rank. Return the
        number of lost messages, and if there are any the nanoseconds since the last message, else 0."""
        node = self._node
        count = await node.heard(self._peer)
        end_reported = node.now()
        while self.received_count < count and (remaining := max(end_reported, self.last_time) + QUIET - node.now()) > 0:
            await node.sleep(remaining)
        idle = node.now() - self.last_time if self.received_count < count else 0
        await end_receives(comm, receives)
        return count - self.received_count, idle


async def end_receives(comm: Comm, count: int) -> None:
    """End receives from any source by messages to this rank, which are never lost."""
    for _ in range(count):
        await comm.Send(None, comm.rank)

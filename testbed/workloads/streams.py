"""Streams of messages between two ranks: a window in flight, verification of every message, and a final acknowledgement.

The receiver's first receives are posted before the sender begins. The measured time ends with the arrival of the
acknowledgement, when all messages have been received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import Final, NamedTuple

from testbed.workloads.form import Comm, Contents, Node

_DATA, _READY, _DONE, _COUNT = 1, 2, 3, 4


class StreamResult(NamedTuple):
    """Result of a stream. took: nanoseconds from the first message to the final acknowledgement. lost: number of lost
    messages."""

    took: int
    lost: int = 0


class Streams:
    """Streams of one rank. Parameters of the methods: size: bytes of a message. count: number of messages. window: messages
    in flight."""

    def __init__(self, comm: Comm, node: Node, contents: Contents) -> None:
        self._comm: Final = comm
        self._node: Final = node
        self._contents: Final = contents

    async def send(self, peer: int, size: int, count: int, window: int) -> StreamResult:
        """Send to a receiver as soon as it is ready."""
        await (await self.ready(peer))
        return await self.send_at_once(peer, size, count, window)

    async def ready(self, peer: int) -> Awaitable[object]:
        """Return an awaitable that is done when the receiver has posted its first receives. It must be awaited before
        `send_at_once`."""
        return await self._comm.Irecv(None, peer, _READY)

    async def send_at_once(self, peer: int, size: int, count: int, window: int) -> StreamResult:
        """Send to a receiver that is ready."""
        comm, contents, now = self._comm, self._contents, self._node.now
        # Posted early: some protocols drop an acknowledgement without a posted receive, and resend it a timeout later.
        done = await comm.Irecv(None, peer, _DONE)
        started = now()
        in_flight = deque(
            [await comm.Isend(contents.of(number, size), peer, _DATA) for number in range(min(count, window))]
        )
        for number in range(len(in_flight), count):
            await in_flight.popleft().Wait()
            in_flight.append(await comm.Isend(contents.of(number, size), peer, _DATA))
        for sent in in_flight:
            await sent.Wait()
        await done.Wait()
        return StreamResult(now() - started)

    async def receive(self, peer: int, size: int, count: int, window: int) -> int:
        """Receive a stream; return the number of lost messages. Raises VerificationError."""
        comm, contents = self._comm, self._contents
        buffers = [bytearray(size) for _ in range(min(count, window))]
        in_flight = deque([(buffer, await comm.Irecv(buffer, peer, _DATA)) for buffer in buffers])
        await comm.Send(None, peer, _READY)
        origin = f"from rank {peer}"
        for number in range(count):
            buffer, receive = in_flight.popleft()
            await receive.Wait()
            contents.check(number, buffer, origin)
            if number + len(buffers) < count:
                in_flight.append((buffer, await comm.Irecv(buffer, peer, _DATA)))
        await comm.Send(None, peer, _DONE)
        return 0

    async def send_count(self, peer: int, count: int) -> None:
        """Send the number of messages that will follow; `receive_count` receives it."""
        await self._comm.send(count, peer, _COUNT)

    async def receive_count(self, peer: int) -> int:
        count = await self._comm.recv(source=peer, tag=_COUNT)
        assert isinstance(count, int)
        return count

    def losses(self, lost: int) -> dict[str, int]:  # noqa: ARG002  used by subclasses
        """Return the entries of a row about losses; none if messages cannot be lost."""
        return {}


def affordable_count(count: int, trial_count: int, took: int, time_limit: int) -> int:
    """Return the number of rounds, 1 to `count`, that take no longer than `time_limit` nanoseconds, if `trial_count` rounds
    took `took` nanoseconds."""
    return max(1, min(count, time_limit * trial_count // max(1, took)))

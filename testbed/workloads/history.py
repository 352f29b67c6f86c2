"""What an application sent, received and was told, as it happened: the history that checkers look at.

A `HistoryDevice` between a communicator and its protocol tells two events of every transfer:

    {"clock_ns": 17, "what": "send", "n": 4, "peer": 2, "context": 0, "tag": 7, "bytes": 64, "digest": "9f3c..."}
    {"clock_ns": 29, "what": "sent", "n": 4}
    {"clock_ns": 31, "what": "receive", "n": 5, "peer": -1, "context": 0, "tag": -1, "bytes": 4096}
    {"clock_ns": 40, "what": "received", "n": 5, "peer": 2, "context": 0, "tag": 7, "bytes": 64, "digest": "9f3c..."}
    {"clock_ns": 55, "what": "failed", "n": 6, "error": "node 2 does not answer", "class": 101}

n numbers a node's transfers in the order in which they began. peer and tag of a receive are what it was begun for, of what
was received what has come; -1 stands for any. bytes of a receive that has begun is its buffer's. What has begun and never
ended was still under way when the run was over. class is that of MPI's errors; a receive whose message was too long tells
peer, tag and bytes, too, of what its buffer holds. Who wants no history has a plain device, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b

from protocols.core.completion import Completion
from protocols.mpi.device import Device
from protocols.mpi.errors import Envelope, MPIError

Tell = Callable[[Mapping[str, object]], object]


class HistoryDevice:
    """A device that tells of its transfers. Stands where `Device` does."""

    __slots__ = (
        "_clock", "_count", "_device", "_tell", "contexts", "most_bytes", "most_tag", "next_continuation", "rank", "size",
    )  # fmt: skip

    def __init__(self, device: Device, clock: Callable[[], int], tell: Tell) -> None:
        """clock: nanoseconds. tell: is given each event."""
        self._device = device
        self._clock = clock
        self._tell = tell
        self._count = 0
        self.rank = device.rank
        self.size = device.size
        self.contexts = device.contexts
        self.most_tag = device.most_tag
        self.most_bytes = device.most_bytes
        self.next_continuation = device.next_continuation

    def send(self, destination: int, context: int, tag: int, data: memoryview) -> Completion[Envelope]:
        number = self._begin("send", destination, context, tag, len(data), digest=digest(data))
        over = self._device.send(destination, context, tag, data)
        over.add_callback(partial(self._sent, number))
        return over

    def receive(self, source: int, context: int, tag: int, buffer: memoryview) -> Completion[Envelope]:
        number = self._begin("receive", source, context, tag, len(buffer))
        over = self._device.receive(source, context, tag, buffer)
        over.add_callback(partial(self._received, number, context, buffer))
        return over

    def waiting(self) -> list[str]:
        return self._device.waiting()

    def _begin(self, what: str, peer: int, context: int, tag: int, size: int, **more: object) -> int:
        self._count += 1
        facts = {"n": self._count, "peer": peer, "context": context, "tag": tag, "bytes": size, **more}
        self._tell({"clock_ns": self._clock(), "what": what, **facts})
        return self._count

    def _sent(self, number: int, over: Completion[Envelope]) -> None:
        try:
            over.result()
        except MPIError as error:
            self._failed(number, error)
        else:
            self._tell({"clock_ns": self._clock(), "what": "sent", "n": number})

    def _received(self, number: int, context: int, buffer: memoryview, over: Completion[Envelope]) -> None:
        try:
            peer, tag, size = over.result()
        except MPIError as error:
            self._failed(number, error)
            return
        facts = {"n": number, "peer": peer, "context": context, "tag": tag, "bytes": size}
        self._tell({"clock_ns": self._clock(), "what": "received", **facts, "digest": digest(buffer[:size])})

    def _failed(self, number: int, error: MPIError) -> None:
        facts: dict[str, object] = {"n": number, "error": str(error), "class": error.error_class}
        if error.envelope is not None:
            facts |= {"peer": error.envelope.source, "tag": error.envelope.tag, "bytes": error.envelope.length}
        self._tell({"clock_ns": self._clock(), "what": "failed", **facts})


def digest(data: memoryview) -> str:
    """Of a message's content."""
    return blake2b(data, digest_size=8).hexdigest()

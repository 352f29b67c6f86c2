"""What an application sent, received and was told, as it happened: the history that checkers look at.

A `HistoryDevice` between a communicator and its protocol tells two events of every transfer:

    {"clock_ns": 17, "what": "send", "n": 4, "peer": 2, "context": 0, "tag": 7, "bytes": 64, "digest": "9f3c..."}
    {"clock_ns": 29, "what": "sent", "n": 4}
    {"clock_ns": 31, "what": "receive", "n": 5, "peer": -1, "context": 0, "tag": -1, "bytes": 4096}
    {"clock_ns": 40, "what": "received", "n": 5, "peer": 2, "context": 0, "tag": 7, "bytes": 64, "digest": "9f3c..."}
    {"clock_ns": 55, "what": "failed", "n": 6, "error": "node 2 does not answer", "class": 101}
    {"clock_ns": 60, "what": "cancelled", "n": 7}

n numbers a node's transfers in the order in which they began. peer and tag of a receive are what it was begun for, of what
was received what has come; -1 stands for any. bytes of a receive that has begun is its buffer's; one whose message a probe
has claimed begins with that. What has begun and never ended was still under way when the run was over. class is that of
MPI's errors; a receive whose message was too long tells peer, tag and bytes, too, of what its buffer holds. Who wants no
history has a plain device, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b

from protocols.core.completion import Completion
from protocols.mpi.device import Device, Found, Receipt
from protocols.mpi.errors import CANCELLED, Envelope, MPIError
from protocols.mpi.pieces import Data, gathered

Tell = Callable[[Mapping[str, object]], object]


class HistoryDevice:
    """A device that tells of its transfers. Stands where `Device` does."""

    __slots__ = (
        "_claimed", "_clock", "_count", "_device", "_tell", "cancel", "contexts", "most_bytes", "most_tag",
        "next_continuation", "rank", "size", "taken",
    )  # fmt: skip

    def __init__(self, device: Device, clock: Callable[[], int], tell: Tell) -> None:
        """clock: nanoseconds. tell: is given each event."""
        self._device = device
        self._clock = clock
        self._tell = tell
        self._count = 0
        self._claimed: dict[Found, int] = {}
        self.rank = device.rank
        self.size = device.size
        self.contexts = device.contexts
        self.most_tag = device.most_tag
        self.most_bytes = device.most_bytes
        self.next_continuation = device.next_continuation
        self.taken = device.taken
        self.cancel = device.cancel

    def send(
        self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False
    ) -> Completion[Envelope]:
        number = self._begin("send", destination, context, tag, len(data), digest=digest(gathered(data)))
        over = self._device.send(destination, context, tag, data, synchronous)
        over.add_callback(partial(self._sent, number))
        return over

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> Receipt:
        number = self._begin("receive", source, context, tag, len(buffer))
        over = self._device.receive(source, context, tag, buffer)
        over.add_callback(partial(self._received, number, context, buffer))
        return over

    def receive_claimed(self, found: Found, context: int, buffer: Data) -> Receipt:
        over = self._device.receive_claimed(found, context, buffer)
        over.add_callback(partial(self._received, self._claimed.pop(found), context, buffer))
        return over

    def probe(
        self, source: int, context: int, tag: int, wait: bool = True, claim: bool = False
    ) -> Completion[Found | None]:
        over = self._device.probe(source, context, tag, wait, claim)
        if claim:
            over.add_callback(partial(self._claim, context))
        return over

    def waiting(self) -> list[str]:
        return self._device.waiting()

    def _begin(self, what: str, peer: int, context: int, tag: int, size: int, **more: object) -> int:
        self._count += 1
        facts = {"n": self._count, "peer": peer, "context": context, "tag": tag, "bytes": size, **more}
        self._tell({"clock_ns": self._clock(), "what": what, **facts})
        return self._count

    def _claim(self, context: int, over: Completion[Found | None]) -> None:
        with suppress(MPIError):
            if (found := over.result()) is not None:
                peer, tag, size = found.envelope
                self._claimed[found] = self._begin("receive", peer, context, tag, size)

    def _sent(self, number: int, over: Completion[Envelope]) -> None:
        try:
            envelope = over.result()
        except MPIError as error:
            self._failed(number, error)
        else:
            what = "sent" if envelope is not CANCELLED else "cancelled"
            self._tell({"clock_ns": self._clock(), "what": what, "n": number})

    def _received(self, number: int, context: int, buffer: Data, over: Completion[Envelope]) -> None:
        try:
            peer, tag, size = envelope = over.result()
        except MPIError as error:
            self._failed(number, error)
            return
        if envelope is CANCELLED:
            self._tell({"clock_ns": self._clock(), "what": "cancelled", "n": number})
            return
        facts = {"n": number, "peer": peer, "context": context, "tag": tag, "bytes": size}
        self._tell({"clock_ns": self._clock(), "what": "received", **facts, "digest": digest(gathered(buffer)[:size])})

    def _failed(self, number: int, error: MPIError) -> None:
        facts: dict[str, object] = {"n": number, "error": str(error), "class": error.error_class}
        if error.envelope is not None:
            facts |= {"peer": error.envelope.source, "tag": error.envelope.tag, "bytes": error.envelope.length}
        self._tell({"clock_ns": self._clock(), "what": "failed", **facts})


def digest(data: memoryview) -> str:
    """Of a message's content."""
    return blake2b(data, digest_size=8).hexdigest()

"""History of an application's sends, receives and collective calls, for checkers.

A `HistoryDevice` between a communicator and its protocol records two events for every transfer, and three for a buffered
send, which completes before it is known whether its message arrives:

    {"clock_ns": 17, "what": "send", "n": 4, "peer": 2, "context": 0, "tag": 7, "bytes": 64, "digest": "9f3c..."}
    {"clock_ns": 29, "what": "sent", "n": 4}
    {"clock_ns": 31, "what": "receive", "n": 5, "peer": -1, "context": 0, "tag": -1, "bytes": 4096}
    {"clock_ns": 40, "what": "received", "n": 5, "peer": 2, "context": 0, "tag": 7, "bytes": 64, "digest": "9f3c..."}
    {"clock_ns": 55, "what": "failed", "n": 6, "error": "node 2 does not answer", "class": 101}
    {"clock_ns": 60, "what": "cancelled", "n": 7}
    {"clock_ns": 71, "what": "buffered", "n": 8}
    {"clock_ns": 90, "what": "undelivered", "n": 8, "error": "node 2 has restarted", "class": 101}
    {"clock_ns": 95, "what": "collective", "n": 0, "call": "Bcast", "context": 1, "at": "a.py:7 in f", "root": 0, "bytes": 8}

n numbers a node's transfers in the order in which they began. peer and tag of "receive" are the arguments of the call
(-1: any), those of "received" are the message's. bytes of "receive" is the size of the buffer, or of the message if a
probe has claimed it. A transfer without a second event was in progress at the end of the run. class is MPI's error
class; a truncated receive also has peer, tag, and bytes of the part in its buffer. Without a history the plain device
is used, without overhead.

n of a collective call numbers the calls of its communicator, which is identified by context and ranks (of the device;
default: all). at is the program's line. root, bytes (of each block), op, datatype, out and into (bytes to and from each
rank) are the arguments of the call, as far as it has them. Its messages are recorded as transfers, too.

What "sent" means depends on the protocol: with EMP the message has been received, with AM-II the receiver's library has it,
with TCP and UDP it is in the kernel's buffer. With AM-II a message is first "buffered": the program continues, and may reuse
its buffer. Then it is "sent", or "undelivered": it was returned, or its receiver has restarted or does not answer. The fate
of a message that is only "buffered" is unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE
from protocols.mpi.device import CallArguments, Communicator, Device, ProbeResult, ReceiveCompletion, SendCompletion
from protocols.mpi.iovec import Data, to_contiguous
from protocols.mpi.mailbox import Mailbox
from protocols.mpi.mpi_errors import CANCELLED, Envelope, MPIError
from protocols.mpi.send_buffer import SendBuffer
from testbed.engine.tracebacks import program_line, stack_frames

EventWriter = Callable[[Mapping[str, object]], object]

COLLECTIVE: Final = "collective"
_ENVELOPE: Final = ("peer", "context", "tag", "bytes")
_KEYS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "send": (*_ENVELOPE, "digest"),
    "sent": (),
    "receive": _ENVELOPE,
    "received": (*_ENVELOPE, "digest"),
    "failed": ("error",),
    "cancelled": (),
    "buffered": (),
    "undelivered": ("error",),
    COLLECTIVE: ("call", "context", "at"),
}


def check_event(event: Mapping[str, Any]) -> None:
    """Raise ValueError if a document is not an event of a `HistoryDevice`."""
    clock, what, number = event.get("clock_ns"), event.get("what"), event.get("n")
    if not _is_number(clock) or not _is_number(number) or not isinstance(what, str):
        raise ValueError("an event has whole numbers clock_ns and n, and a text what")
    if what not in _KEYS_OF:
        raise ValueError(f"what is {what[:20]!r}, none of the events of a history")
    for key in _KEYS_OF[what]:
        if key not in event:
            raise ValueError(f"{what!r} has no {key}")
    for key in ("peer", "context", "tag", "bytes", "class", "root"):
        if not _is_number(event.get(key, 0)):
            raise ValueError(f"{key} of {what!r} is not a whole number")
    for key in ("digest", "error", "call", "at", "op", "datatype"):
        if not isinstance(event.get(key, ""), str):
            raise ValueError(f"{key} of {what!r} is not a text")
    for key in ("ranks", "out", "into"):
        if not isinstance(event.get(key, []), list) or not all(map(_is_number, event.get(key, []))):
            raise ValueError(f"{key} of {what!r} is not a list of whole numbers")
    if what == "failed" and "peer" in event and not {"tag", "bytes"} <= event.keys():
        raise ValueError("a failed receive with a peer also has a tag and bytes")


def _is_number(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


class HistoryDevice:
    """A `Device` that records its transfers and collective calls, and passes them to another device."""

    __slots__ = (
        "_claimed",
        "_clock",
        "_count",
        "_device",
        "_write",
        "attached_buffer",
        "cancel",
        "contexts",
        "contexts_in_use",
        "lost_sends",
        "mailbox",
        "mailbox_context_tag",
        "mailbox_slots",
        "max_message_size",
        "max_tag",
        "next_continuation",
        "rank",
        "rank_failures",
        "size",
    )  # fmt: skip

    def __init__(self, device: Device, clock: Callable[[], int], write: EventWriter) -> None:
        """device: the protocol's device. clock: returns nanoseconds. write: called with each event."""
        self._device = device
        self._clock = clock
        self._write = write
        self._count = 0
        self._claimed: dict[ProbeResult, int] = {}
        self.rank = device.rank
        self.size = device.size
        self.contexts = device.contexts
        self.max_tag = device.max_tag
        self.max_message_size = device.max_message_size
        self.next_continuation = device.next_continuation
        self.contexts_in_use = device.contexts_in_use
        self.cancel = device.cancel
        self.lost_sends = device.lost_sends
        self.rank_failures = device.rank_failures
        self.attached_buffer: SendBuffer | None = None
        self.mailbox: Mailbox | None = None
        self.mailbox_slots = device.mailbox_slots
        self.mailbox_context_tag = device.mailbox_context_tag

    def send(self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False) -> SendCompletion:
        number = self._begin("send", destination, context, tag, len(data), digest=digest(to_contiguous(data)))
        completion = self._device.send(destination, context, tag, data, synchronous)
        completion.add_callback(partial(self._on_sent, number, completion))
        return completion

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> ReceiveCompletion:
        number = self._begin("receive", source, context, tag, len(buffer))
        completion = self._device.receive(source, context, tag, buffer)
        completion.add_callback(partial(self._on_received, number, context, buffer))
        return completion

    def receive_standing(self, buffer: memoryview) -> ReceiveCompletion | None:
        completion = self._device.receive_standing(buffer)
        if completion is not None:
            context, tag = self.mailbox_context_tag
            number = self._begin("receive", ANY_SOURCE, context, tag, len(buffer))
            completion.add_callback(partial(self._on_received, number, context, buffer))
        return completion

    def receive_claimed(self, probe_result: ProbeResult, context: int, buffer: Data) -> ReceiveCompletion:
        completion = self._device.receive_claimed(probe_result, context, buffer)
        completion.add_callback(partial(self._on_received, self._claimed.pop(probe_result), context, buffer))
        return completion

    def probe(
        self, source: int, context: int, tag: int, wait: bool = True, claim: bool = False
    ) -> Completion[ProbeResult | None]:
        completion = self._device.probe(source, context, tag, wait, claim)
        if claim:
            completion.add_callback(partial(self._on_claimed, context))
        return completion

    def note_collective(self, call: str, communicator: Communicator, arguments: CallArguments) -> None:
        fields: dict[str, object] = {"n": communicator.number, "call": call, "context": communicator.context}
        fields["at"] = program_line(stack_frames(sys._getframe()))
        if communicator.ranks is not None:
            fields["ranks"] = list(communicator.ranks)
        root, size, op, datatype, out, into = arguments
        fields |= {name: number for name, number in (("root", root), ("bytes", size)) if number >= 0}
        fields |= {name: word for name, word in (("op", op), ("datatype", datatype)) if word}
        fields |= {name: list(sizes) for name, sizes in (("out", out), ("into", into)) if sizes is not None}
        self._write({"clock_ns": self._clock(), "what": COLLECTIVE, **fields})

    def pending_work(self) -> list[str]:
        return self._device.pending_work()

    def _begin(self, what: str, peer: int, context: int, tag: int, size: int, **more_fields: object) -> int:
        """Record the first event of a transfer; return the transfer's number."""
        self._count += 1
        fields = {"n": self._count, "peer": peer, "context": context, "tag": tag, "bytes": size, **more_fields}
        self._write({"clock_ns": self._clock(), "what": what, **fields})
        return self._count

    def _on_claimed(self, context: int, completion: Completion[ProbeResult | None]) -> None:
        with suppress(MPIError):
            if (probe_result := completion.result()) is not None:
                peer, tag, size = probe_result.envelope
                self._claimed[probe_result] = self._begin("receive", peer, context, tag, size)

    def _on_sent(self, number: int, completion: SendCompletion, _: object) -> None:
        try:
            envelope = completion.result()
        except MPIError as error:
            self._record_failure(number, error)
            return
        if completion.is_unconfirmed:
            completion.on_outcome = partial(self._on_outcome, number)
            what = "buffered"
        else:
            what = "sent" if envelope is not CANCELLED else "cancelled"
        self._write({"clock_ns": self._clock(), "what": what, "n": number})

    def _on_outcome(self, number: int, completion: SendCompletion) -> None:
        try:
            completion.result()
        except MPIError as error:
            self._record_failure(number, error, "undelivered")
        else:
            self._write({"clock_ns": self._clock(), "what": "sent", "n": number})

    def _on_received(self, number: int, context: int, buffer: Data, completion: Completion[Envelope]) -> None:
        try:
            peer, tag, size = envelope = completion.result()
        except MPIError as error:
            self._record_failure(number, error)
            return
        if envelope is CANCELLED:
            self._write({"clock_ns": self._clock(), "what": "cancelled", "n": number})
            return
        fields = {"n": number, "peer": peer, "context": context, "tag": tag, "bytes": size}
        self._write(
            {"clock_ns": self._clock(), "what": "received", **fields, "digest": digest(to_contiguous(buffer)[:size])}
        )

    def _record_failure(self, number: int, error: MPIError, what: str = "failed") -> None:
        fields: dict[str, object] = {"n": number, "error": str(error), "class": error.error_class}
        if error.envelope is not None:
            fields |= {"peer": error.envelope.source, "tag": error.envelope.tag, "bytes": error.envelope.length}
        self._write({"clock_ns": self._clock(), "what": what, **fields})


def digest(data: memoryview) -> str:
    """Return the digest of a message's content."""
    return blake2b(data, digest_size=8).hexdigest()

"""MPI's matching in software, for NICs and kernels that do not match messages by source and tag.

Each context has two queues, as in every MPI: posted receives without a message, and unexpected messages, which have
arrived without a receive (MPI 4.1, section 3.5: in order, by source and tag, wildcards only in receives).

The upper eight bits of the context flag and number a synchronous message. When it is matched, the receiver reports that to
the sender with an empty message in the context MATCHED, whose tag is that number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from protocols.core.compiled_build import mypyc_attr
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import SendCompletion, ProbeResult, ReceiveCompletion
from protocols.mpi.mpi_errors import CANCELLED, ERR_TRUNCATE, Envelope, MPIError

MATCHED: Final = 0xFFFF
"""Context of the messages that report a match to the sender."""
CONTEXTS: Final = 256
"""Number of contexts that programs can use."""
_SYNCHRONOUS_FLAG: Final = 1 << 15
_MAX_SYNCHRONOUS: Final = 127  # synchronous messages in progress to one peer


class Receive:
    """A posted receive."""

    __slots__ = ("buffer", "completion", "source", "tag")

    def __init__(self, source: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> None:
        self.source = source
        self.tag = tag
        self.buffer = buffer
        self.completion = completion


class _Probe(NamedTuple):
    """A waiting probe."""

    context: int
    source: int
    tag: int
    claim: bool
    completion: Completion[ProbeResult | None]


class Arrival:
    """An incoming message; it may be matched before it is complete.

    buffer: where the caller writes its bytes; those beyond its end are discarded. number: of a synchronous message,
    otherwise -1. begin: for a message whose bytes are sent only after the match: called when it is matched and `buffer` is
    set. None: the bytes arrive at once.
    """

    __slots__ = ("begin", "buffer", "done", "error", "length", "number", "receive", "source", "tag")

    def __init__(
        self, source: int, tag: int, length: int, number: int = -1, begin: Callable[[Arrival], object] | None = None
    ) -> None:
        self.source = source
        self.tag = tag
        self.length = length
        self.number = number
        self.begin = begin
        self.buffer: memoryview
        self.receive: Receive | None = None
        self.done = False
        self.error: MPIError | None = None
        """Why the rest of the message will not arrive."""


class MatchingQueues:
    """The queues of one node. report_match: called with source and number when a synchronous message is matched."""

    __slots__ = ("_posted", "_probes", "_report_match", "_unexpected", "_unmatched")

    def __init__(self, report_match: Callable[[int, int], object] = lambda _source, _number: None) -> None:
        self._report_match = report_match
        self._posted: dict[int, list[Receive]] = {}
        self._unexpected: dict[int, list[Arrival]] = {}
        self._probes: list[_Probe] = []
        self._unmatched: dict[tuple[int, int], tuple[Completion[Envelope], Envelope]] = {}  # by peer and number

    def post(self, context: int, receive: Receive) -> None:
        """Post a receive: it takes the oldest matching unexpected message, or is queued."""
        arrivals = self._unexpected.get(context)
        if arrivals:
            for index, arrival in enumerate(arrivals):
                if receive.source in (ANY_SOURCE, arrival.source) and receive.tag in (ANY_TAG, arrival.tag):
                    del arrivals[index]
                    self.receive_claimed(arrival, receive)
                    return
        self._posted.setdefault(context, []).append(receive)
        receive.completion.cancel = partial(self._cancel, context, receive)

    def receive_claimed(self, arrival: Arrival, receive: Receive) -> None:
        """Match a receive with this message."""
        if arrival.error is not None:
            receive.completion.fail(arrival.error)
            return
        arrival.receive = receive
        if arrival.number >= 0:
            self._report_match(arrival.source, arrival.number)
        if arrival.begin is not None:
            arrival.buffer = receive.buffer[: arrival.length]
            arrival.begin(arrival)
        elif arrival.done:
            self._finish(arrival)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> None:
        """Probe as `MatchingEndpoint.probe`."""
        arrivals = self._unexpected.get(context, [])
        for index, arrival in enumerate(arrivals):
            if source in (ANY_SOURCE, arrival.source) and tag in (ANY_TAG, arrival.tag):
                if claim:
                    del arrivals[index]
                completion.complete(_probe_result(arrival))
                return
        if wait:
            self._probes.append(_Probe(context, source, tag, claim, completion))
        else:
            completion.complete(None)

    def arrive(
        self,
        source: int,
        context: int,
        tag: int,
        length: int,
        begin: Callable[[Arrival], object] | None = None,
    ) -> Arrival:
        """Begin an incoming message: match it with the oldest posted receive, or queue it as unexpected. The caller writes
        its bytes to `buffer`, then calls `complete`. begin: see `Arrival`; it may be called before this returns, and
        `buffer` is not set before."""
        number = -1
        if context & _SYNCHRONOUS_FLAG and context != MATCHED:
            number = _synchronous_number(context)
            context %= CONTEXTS
        arrival = Arrival(source, tag, length, number, begin)
        if context == MATCHED:
            arrival.buffer = memoryview(bytearray(length))
            waiting = self._unmatched.pop((source, tag), None)
            if waiting is not None:
                waiting[0].complete(waiting[1])
            return arrival
        posted = self._posted.get(context)
        if posted:
            for index, receive in enumerate(posted):
                if receive.source in (ANY_SOURCE, source) and receive.tag in (ANY_TAG, tag):
                    del posted[index]
                    arrival.buffer = receive.buffer[:length]
                    self.receive_claimed(arrival, receive)
                    return arrival
        if begin is None:
            arrival.buffer = memoryview(bytearray(length))
        self._unexpected.setdefault(context, []).append(arrival)
        if self._probes:
            self._answer(context, arrival)
        return arrival

    def complete(self, arrival: Arrival) -> bool:
        """Complete an incoming message. Returns whether that completed a receive."""
        arrival.done = True
        if arrival.receive is None:
            return False
        self._finish(arrival)
        return True

    def arrive_whole(self, source: int, context: int, tag: int, data: Buffer) -> bool:
        """Handle an incoming message whose bytes have all arrived. Returns whether a receive is thereby complete."""
        arrival = self.arrive(source, context, tag, len(data))
        place = arrival.buffer
        place[:] = data if len(place) == len(data) else data[: len(place)]
        return self.complete(arrival)

    def send_to_self(self, rank: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> None:
        """Carry out a send of this node to itself. It is complete as soon as the bytes are copied, as its receive may only
        be posted later."""
        arrival = self.arrive(rank, context, tag, len(data))
        arrival.buffer[:] = data[: len(arrival.buffer)]
        completion.complete(Envelope(rank, tag, len(data)))
        self.complete(arrival)

    def fail_arrival(self, arrival: Arrival, error: MPIError) -> None:
        """Fail a message whose rest will not arrive: its receive fails; an unexpected message is discarded."""
        arrival.error = error
        if arrival.receive is not None:
            arrival.receive.completion.fail(error)
            return
        for arrivals in self._unexpected.values():
            if arrival in arrivals:
                arrivals.remove(arrival)

    def track_synchronous(self, peer: int, envelope: Envelope, completion: Completion[Envelope]) -> int | None:
        """Track a synchronous message that is being sent; `completion` completes when it is matched, perhaps before it is
        sent completely. Returns the bits for its context; None if too many are in progress."""
        for number in range(_MAX_SYNCHRONOUS):
            if (peer, number) not in self._unmatched:
                self._unmatched[peer, number] = completion, envelope
                return _SYNCHRONOUS_FLAG | number * CONTEXTS
        return None

    def untrack_synchronous(self, peer: int, mark: int, error: MPIError | None = None) -> None:
        """Stop tracking a message that could not be sent. mark: from `track_synchronous`. error: its failure; None: the
        send was not begun."""
        waiting = self._unmatched.pop((peer, _synchronous_number(mark)), None)
        if waiting is not None and error is not None:
            waiting[0].fail(error)

    def fail_transfers(
        self, peer: int, error: MPIError, sends: Iterable[SendCompletion], arrivals: Iterable[Arrival] = ()
    ) -> None:
        """Fail what is under way with a peer whose session has ended: sends to it, incoming messages from it, and the
        synchronous messages that it has not matched. Receives that no message has matched stay: the next session's may."""
        for completion in sends:
            completion.abandon(error)
        for arrival in arrivals:
            self.fail_arrival(arrival, error)
        for key in [key for key in self._unmatched if key[0] == peer]:
            self._unmatched.pop(key)[0].fail(error)

    def fail_receives(self, source: int, error: MPIError) -> None:
        """Fail the receives and probes that name this source, since it will not send any more."""
        for posted in self._posted.values():
            failed = [receive for receive in posted if receive.source == source]
            posted[:] = [receive for receive in posted if receive.source != source]
            for receive in failed:
                receive.completion.fail(error)
        probes = [probe for probe in self._probes if probe.source == source]
        self._probes = [probe for probe in self._probes if probe.source != source]
        for probe in probes:
            probe.completion.fail(error)

    def posted_count(self) -> int:
        """Return the number of posted receives without a message."""
        return sum(len(posted) for posted in self._posted.values())

    def _cancel(self, context: int, receive: Receive) -> None:
        posted = self._posted[context]
        if receive in posted:
            posted.remove(receive)
            receive.completion.complete(CANCELLED)

    def _answer(self, context: int, arrival: Arrival) -> None:
        """Complete the probes that match a message, the oldest first, until one claims it."""
        answered = []
        for probe in self._probes:
            if (
                probe.context == context
                and probe.source in (ANY_SOURCE, arrival.source)
                and probe.tag in (ANY_TAG, arrival.tag)
            ):
                answered.append(probe)
                if probe.claim:
                    self._unexpected[context].remove(arrival)
                    break
        self._probes = [probe for probe in self._probes if probe not in answered]
        for probe in answered:
            probe.completion.complete(_probe_result(arrival))

    def _finish(self, arrival: Arrival) -> None:
        receive = arrival.receive
        assert receive is not None
        size = len(receive.buffer)
        if arrival.length and arrival.buffer.obj is not receive.buffer.obj:  # it was an unexpected message
            receive.buffer[: arrival.length] = arrival.buffer[:size]
        if arrival.length > size:
            what = f"a message of {arrival.length} bytes from rank {arrival.source}, tag {arrival.tag},"
            message = f"{what} for a buffer of {size} bytes"
            receive.completion.fail(MPIError(ERR_TRUNCATE, message, Envelope(arrival.source, arrival.tag, size)))
        else:
            receive.completion.complete(Envelope(arrival.source, arrival.tag, arrival.length))


def _synchronous_number(context: int) -> int:
    """Return the number of a synchronous message, from its context."""
    return (context ^ _SYNCHRONOUS_FLAG) // CONTEXTS


def _probe_result(arrival: Arrival) -> ProbeResult:
    return ProbeResult(Envelope(arrival.source, arrival.tag, arrival.length), arrival)


@mypyc_attr(allow_interpreted_subclasses=True)
class SoftwareMatchingEndpoint(ABC):
    """Base of a `MatchingEndpoint` that matches in software. The subclass sends messages with a context of 16 bits, of which
    programs use at most CONTEXTS, and passes all incoming messages to `matching`."""

    def __init__(self) -> None:
        self.matching = MatchingQueues(self._report_match)

    @abstractmethod
    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        """See `MatchingEndpoint.send`."""

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion
    ) -> bool:
        matching = self.matching
        matched: Completion[Envelope] = Completion("a match")
        mark = matching.track_synchronous(destination, Envelope(destination, tag, len(data)), matched)
        if mark is None:
            return False
        sent = SendCompletion()
        sent.add_callback(partial(self._sent, destination, mark))
        for half in (matched, sent):
            half.add_callback(partial(_complete_both, matched, sent, completion))
        if self.send(destination, context | mark, tag, data, sent):
            return True
        matching.untrack_synchronous(destination, mark)
        return False

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        self.matching.post(context, Receive(source, tag, buffer, completion))
        return True

    def receive_claimed(self, found: ProbeResult, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        source, tag, _ = found.envelope
        assert isinstance(found.handle, Arrival)
        self.matching.receive_claimed(found.handle, Receive(source, tag, buffer, completion))
        return True

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        self.matching.probe(source, context, tag, wait, claim, completion)
        return True

    def _sent(self, destination: int, mark: int, sent: Completion[Envelope]) -> None:
        try:
            sent.result()
        except MPIError as error:
            self.matching.untrack_synchronous(destination, mark, error)

    def _report_match(self, source: int, number: int) -> None:
        self.send(source, MATCHED, number, memoryview(b""), SendCompletion())


def _complete_both(
    matched: Completion[Envelope], sent: SendCompletion, completion: SendCompletion, half: Completion[Envelope]
) -> None:
    """Complete a synchronous send once its message is matched and its buffer may be reused."""
    if completion.done:
        return
    try:
        envelope = half.result()
    except MPIError as error:
        completion.fail(error)
        return
    if matched.done and sent.done:
        completion.complete(envelope)

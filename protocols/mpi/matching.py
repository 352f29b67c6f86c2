"""MPI's matching in software, for NICs and kernels that do not match messages by source and tag.

Each context has two queues, as in other MPI implementations: posted receives, and unexpected messages, which have arrived
before a matching receive (MPI 4.1, section 3.5: in order, by source and tag, wildcards only in receives).

The upper eight bits of a synchronous message's context mark it as synchronous and hold its number. When the message is
matched, the receiver sends an empty message in the context MATCHED, whose tag is that number.
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
from protocols.mpi.device import ProbeResult, ReceiveCompletion, SendCompletion
from protocols.mpi.mpi_errors import CANCELLED, ERR_PROC_FAILED, ERR_TRUNCATE, Envelope, MPIError

MATCHED: Final = 0xFFFF
"""Context of the messages that report the match of a synchronous message to its sender."""
CONTEXTS: Final = 256
"""Number of contexts for programs."""
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
    """A probe that waits for a message."""

    context: int
    source: int
    tag: int
    claims: bool
    completion: Completion[ProbeResult | None]


class Arrival:
    """An incoming message; it may be matched before it is complete.

    buffer: memory to which the caller writes the message; bytes beyond its end are discarded. number: number of a
    synchronous message, otherwise -1. on_match: of a rendezvous message, whose bytes are sent only after the match; called
    when the message is matched and `buffer` is set. None: an eager message. receive: the receive that it matches; None: none
    yet. error: set if the rest of the message will not arrive.
    """

    __slots__ = ("buffer", "error", "is_complete", "length", "number", "on_match", "receive", "source", "tag")

    def __init__(
        self, source: int, tag: int, length: int, number: int = -1, on_match: Callable[[Arrival], object] | None = None
    ) -> None:
        self.source = source
        self.tag = tag
        self.length = length
        self.number = number
        self.on_match = on_match
        self.buffer: memoryview
        self.receive: Receive | None = None
        self.is_complete = False
        self.error: MPIError | None = None


class MatchingQueues:
    """The matching queues of one node. report_match: called with source and number when a synchronous message is
    matched."""

    __slots__ = ("_posted", "_probes", "_report_match", "_unexpected", "_unmatched")

    def __init__(self, report_match: Callable[[int, int], object] = lambda _source, _number: None) -> None:
        self._report_match = report_match
        self._posted: dict[int, list[Receive]] = {}  # by context, in the order in which they were posted
        self._unexpected: dict[int, list[Arrival]] = {}  # by context, in order of arrival
        self._probes: list[_Probe] = []
        # Synchronous messages that this node has sent and the peer has not matched, by peer and number.
        self._unmatched: dict[tuple[int, int], tuple[Completion[Envelope], Envelope]] = {}

    def post(self, context: int, receive: Receive) -> None:
        """Post a receive: match it with the oldest matching unexpected message, or queue it."""
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
        """Match a receive with an arrival: an unexpected message, or one that a probe has claimed."""
        if arrival.error is not None:
            receive.completion.fail(arrival.error)
            return
        arrival.receive = receive
        if arrival.number >= 0:
            self._report_match(arrival.source, arrival.number)
        if arrival.on_match is not None:
            arrival.buffer = receive.buffer[: arrival.length]
            arrival.on_match(arrival)
        elif arrival.is_complete:
            self._finish(arrival)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> None:
        """Probe for a message; see `MatchingEndpoint.probe`."""
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
        on_match: Callable[[Arrival], object] | None = None,
    ) -> Arrival:
        """Add an incoming message: match it with the oldest matching receive, or queue it as unexpected. The caller writes
        its bytes to `Arrival.buffer`, then calls `complete`. on_match: see `Arrival`; may be called before this method
        returns, and `buffer` is not set earlier."""
        number = -1
        if context & _SYNCHRONOUS_FLAG and context != MATCHED:
            number = _synchronous_number(context)
            context %= CONTEXTS
        arrival = Arrival(source, tag, length, number, on_match)
        if context == MATCHED:
            arrival.buffer = memoryview(bytearray(length))
            unmatched = self._unmatched.pop((source, tag), None)
            if unmatched is not None:
                unmatched[0].complete(unmatched[1])
            return arrival
        posted = self._posted.get(context)
        if posted:
            for index, receive in enumerate(posted):
                if receive.source in (ANY_SOURCE, source) and receive.tag in (ANY_TAG, tag):
                    del posted[index]
                    arrival.buffer = receive.buffer[:length]
                    self.receive_claimed(arrival, receive)
                    return arrival
        if on_match is None:
            arrival.buffer = memoryview(bytearray(length))
        self._unexpected.setdefault(context, []).append(arrival)
        if self._probes:
            self._complete_probes(context, arrival)
        return arrival

    def complete(self, arrival: Arrival) -> bool:
        """Complete an incoming message. Returns whether a receive is thereby complete."""
        arrival.is_complete = True
        if arrival.receive is None:
            return False
        self._finish(arrival)
        return True

    def arrive_complete(self, source: int, context: int, tag: int, data: Buffer) -> bool:
        """Add an incoming message whose bytes have all arrived. Returns whether a receive is thereby complete."""
        arrival = self.arrive(source, context, tag, len(data))
        buffer = arrival.buffer
        buffer[:] = data if len(buffer) == len(data) else data[: len(buffer)]
        return self.complete(arrival)

    def send_to_self(self, rank: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> None:
        """Send to this node itself. The send completes when the bytes are copied, since the receive may be posted later."""
        arrival = self.arrive(rank, context, tag, len(data))
        arrival.buffer[:] = data[: len(arrival.buffer)]
        completion.complete(Envelope(rank, tag, len(data)))
        self.complete(arrival)

    def fail_arrival(self, arrival: Arrival, error: MPIError) -> None:
        """Fail an incomplete message whose rest will not arrive: its receive fails; an unexpected message is discarded."""
        arrival.error = error
        if arrival.receive is not None:
            arrival.receive.completion.fail(error)
            return
        for arrivals in self._unexpected.values():
            if arrival in arrivals:
                arrivals.remove(arrival)

    def fail_crashed(self, rank: int, arrivals: Iterable[Arrival]) -> None:
        """Fail the incomplete messages of a rank that has crashed."""
        error = MPIError(ERR_PROC_FAILED, f"rank {rank} has crashed: the rest of its message will not come")
        for arrival in arrivals:
            self.fail_arrival(arrival, error)

    def track_synchronous(self, peer: int, envelope: Envelope, completion: Completion[Envelope]) -> int | None:
        """Track a synchronous message that is being sent; `completion` completes when the message is matched, possibly
        before all of it is sent. Returns the bits that mark its context; None if too many synchronous messages to that peer
        are in progress."""
        for number in range(_MAX_SYNCHRONOUS):
            if (peer, number) not in self._unmatched:
                self._unmatched[peer, number] = completion, envelope
                return _SYNCHRONOUS_FLAG | number * CONTEXTS
        return None

    def untrack_synchronous(self, peer: int, mark: int, error: MPIError | None = None) -> None:
        """Stop tracking a message that could not be sent. mark: the bits from `track_synchronous`. error: why the send
        failed; None: the send was not begun."""
        unmatched = self._unmatched.pop((peer, _synchronous_number(mark)), None)
        if unmatched is not None and error is not None:
            unmatched[0].fail(error)

    def fail_transfers(
        self, peer: int, error: MPIError, sends: Iterable[SendCompletion], arrivals: Iterable[Arrival] = ()
    ) -> None:
        """Fail the transfers in progress with a peer whose session has ended: sends to it, incoming messages from it, and
        synchronous messages that it has not matched. Unmatched receives stay, for messages of the next session; reports of
        stalls mention the error for them."""
        for posted in self._posted.values():
            for receive in posted:
                if receive.source in (peer, ANY_SOURCE):
                    receive.completion.source_failure = str(error)
        # Listed before any completion fails, whose callbacks may begin synchronous messages of the next session.
        unmatched = [(key, matched) for key, (matched, _) in self._unmatched.items() if key[0] == peer]
        for completion in sends:
            completion.abandon(error)
        for arrival in arrivals:
            self.fail_arrival(arrival, error)
        for key, matched in unmatched:
            if not matched.done:
                del self._unmatched[key]
                matched.fail(error)

    def fail_receives(self, source: int, error: MPIError) -> None:
        """Fail the unmatched receives and the probes that name this source, which will not send any more."""
        receives = [receive for posted in self._posted.values() for receive in posted if receive.source == source]
        probes = [probe for probe in self._probes if probe.source == source]
        for posted in self._posted.values():
            posted[:] = [receive for receive in posted if receive.source != source]
        self._probes = [probe for probe in self._probes if probe.source != source]
        for receive in receives:
            receive.completion.fail(error)
        for probe in probes:
            probe.completion.fail(error)

    def posted_count(self) -> int:
        """Return the number of posted, unmatched receives."""
        return sum(len(posted) for posted in self._posted.values())

    def _cancel(self, context: int, receive: Receive) -> None:
        posted = self._posted[context]
        if receive in posted:
            posted.remove(receive)
            receive.completion.complete(CANCELLED)

    def _complete_probes(self, context: int, arrival: Arrival) -> None:
        """Complete the waiting probes that match a message, the oldest first, until one claims it."""
        completed = []
        for probe in self._probes:
            if (
                probe.context == context
                and probe.source in (ANY_SOURCE, arrival.source)
                and probe.tag in (ANY_TAG, arrival.tag)
            ):
                completed.append(probe)
                if probe.claims:
                    self._unexpected[context].remove(arrival)
                    break
        self._probes = [probe for probe in self._probes if probe not in completed]
        for probe in completed:
            probe.completion.complete(_probe_result(arrival))

    def _finish(self, arrival: Arrival) -> None:
        receive = arrival.receive
        assert receive is not None
        size = len(receive.buffer)
        if arrival.length and arrival.buffer.obj is not receive.buffer.obj:  # the message was unexpected
            receive.buffer[: arrival.length] = arrival.buffer[:size]
        if arrival.length > size:
            message = f"a message of {arrival.length} bytes from rank {arrival.source}, tag {arrival.tag},"
            message += f" for a buffer of {size} bytes"
            receive.completion.fail(MPIError(ERR_TRUNCATE, message, Envelope(arrival.source, arrival.tag, size)))
        else:
            receive.completion.complete(Envelope(arrival.source, arrival.tag, arrival.length))


def _synchronous_number(context: int) -> int:
    """Extract the number of a synchronous message from its context."""
    return (context ^ _SYNCHRONOUS_FLAG) // CONTEXTS


def _probe_result(arrival: Arrival) -> ProbeResult:
    return ProbeResult(Envelope(arrival.source, arrival.tag, arrival.length), arrival)


@mypyc_attr(allow_interpreted_subclasses=True)
class SoftwareMatchingEndpoint(ABC):
    """Base class of a `MatchingEndpoint` that matches in software. The subclass sends messages with a context of 16 bits,
    and passes all incoming messages to `matching`. The contexts of programs are below CONTEXTS."""

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
        sent.add_callback(partial(self._on_sent, destination, mark))
        for step in (matched, sent):
            step.add_callback(partial(_complete_both, matched, sent, completion))
        if self.send(destination, context | mark, tag, data, sent):
            return True
        matching.untrack_synchronous(destination, mark)
        return False

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        self.matching.post(context, Receive(source, tag, buffer, completion))
        return True

    def receive_claimed(self, probe_result: ProbeResult, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        source, tag, _ = probe_result.envelope
        assert isinstance(probe_result.handle, Arrival)
        self.matching.receive_claimed(probe_result.handle, Receive(source, tag, buffer, completion))
        return True

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        self.matching.probe(source, context, tag, wait, claim, completion)
        return True

    def _on_sent(self, destination: int, mark: int, sent: Completion[Envelope]) -> None:
        try:
            sent.result()
        except MPIError as error:
            self.matching.untrack_synchronous(destination, mark, error)

    def _report_match(self, source: int, number: int) -> None:
        self.send(source, MATCHED, number, memoryview(b""), SendCompletion())


def _complete_both(
    matched: Completion[Envelope], sent: SendCompletion, completion: SendCompletion, step: Completion[Envelope]
) -> None:
    """Complete a synchronous send once its message is matched and its buffer may be reused. step: the completion that is
    done now."""
    if completion.done:
        return
    try:
        envelope = step.result()
    except MPIError as error:
        completion.fail(error)
        return
    if matched.done and sent.done:
        completion.complete(envelope)

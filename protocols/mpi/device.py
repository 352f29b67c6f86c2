"""The MPI device: sends and receives of bytes and objects, queued in front of a host library. "Device" is MPICH's term;
the MPI of the EMP paper is built on MPICH (section 6).

A host library that matches messages (`MatchingEndpoint`) sends and receives messages by rank, context and tag as long
as it has descriptors. `Device` lets a program begin any number of transfers: those without a descriptor wait for one.
Sends and receives wait in separate queues, so that each kind begins in program order, which keeps the matching in order.

A `SendCompletion` tracks its message after the send has completed. MPI 4.1, section 3.4: a standard send may complete
before its message has been received. Section 9.3: a later failure is reported by a later call of the same operation, if
there is one. So the request reports the failure if the program has not waited for it yet. Otherwise the next call that
involves the same rank, in the message's communicator, reports it with class ERR_PROC_FAILED, as in ULFM. Failures that no
call has reported are reported when the program ends.

The receiver of a pickled object does not know its size, and the paper's EMP has no probe. So the first message of an
object has at most FIRST_SIZE bytes, for which every receive of an object has room: a header (magic number, tag of the
continuation, bytes of the pickle) and the beginning of the pickle. The rest is a second message, the continuation, in a
context of the library's own, with a tag that the sender uses for nothing else. So only the receive that follows the first
one can match it: matching and order, wildcards included, are those of the first message. The continuation is sent when
the first message is complete. On EMP that means that the first message has been received, so the continuation usually
finds its receive posted. FIRST_SIZE is a page: one descriptor, and one collection of EMP's at 1500 bytes per frame. As
always with pickle, the receiver must trust the sender.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from protocols.mpi.endpoints import (
    ConnectingEndpoint,
    CrashAwareEndpoint,
    DroppingEndpoint,
    MatchingEndpoint,
    ScatteringEndpoint,
)
from protocols.mpi.iovec import Data, IoVec
from protocols.mpi.mpi_errors import (
    CANCELLED,
    ERR_COUNT,
    ERR_NO_MEM,
    ERR_TRUNCATE,
    ERR_TYPE,
    PROC_NULL_ENVELOPE,
    Envelope,
    MPIError,
)
from protocols.mpi.rank_failures import RankFailures

if TYPE_CHECKING:
    from protocols.mpi.mailbox import Mailbox
    from protocols.mpi.send_buffer import SendBuffer


FIRST_SIZE: Final = 4096
"""Maximum bytes of an object's first message."""
_MAGIC: Final = bytes.fromhex("80500059 9d1ce4a7 53f0b26e 4d8801c5")  # of this library: no pickle begins with it
_HEADER: Final = Struct("!16sIQ")  # magic number, tag of the continuation, bytes of the pickle
_FIRST_PAYLOAD: Final = FIRST_SIZE - _HEADER.size


class Pickle:
    """The functions that pickle and unpickle objects, which a program may replace (mpi4py's MPI.pickle). PROTOCOL:
    version of pickle's protocol, by default the highest; None, the default for a program's own `dumps`: the function is
    called without a version."""

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[[Any], Any] | None = None,
        protocol: int | None = None,
    ) -> None:
        self._dumps = dumps or pickle.dumps
        self._loads = loads or pickle.loads
        self.PROTOCOL = pickle.HIGHEST_PROTOCOL if protocol is None and dumps is None else protocol

    def dumps(self, obj: object) -> bytes:
        return self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)

    def loads(self, data: bytes | memoryview) -> Any:
        return self._loads(data)


pickler: Final = Pickle()
"""The functions that all ranks in this process use."""


class Communicator(NamedTuple):
    """Communicator of a collective call. ranks: the device's; None: all. number: ordinal of the call in the communicator,
    from 0."""

    context: int
    ranks: Sequence[int] | None
    number: int


class CallArguments(NamedTuple):
    """Arguments of a collective call on which ranks must agree. root, size: equal at all ranks, or -1 if the call has no
    such argument. size: bytes per block. op, datatype: names, for reductions. out, into: bytes of each block that this
    rank sends and receives, by rank, or of the only block; None if the call has no such argument, or this rank does not
    pass it."""

    root: int = -1
    size: int = -1
    op: str = ""
    datatype: str = ""
    out: Sequence[int] | None = None
    into: Sequence[int] | None = None


class ProbeResult(NamedTuple):
    """A message that a probe has found. handle: the endpoint's reference to it, for `receive_claimed`."""

    envelope: Envelope
    handle: "object"  # noqa: UP037  mypyc looks the unquoted name up among the module's


class ReceiveCompletion(Completion[Envelope]):
    """A receive in progress. cancel: set by the endpoint; cancels the receive, which then completes with CANCELLED, unless
    it has matched a message. source_failure: why transfers with its source have failed since it was posted, for reports of
    stalls, since the awaited message may have been one of them; empty: none has failed."""

    __slots__ = ("_size", "_source", "_tag", "cancel", "source_failure")

    def __init__(self, source: int, tag: int, size: int) -> None:
        """source, tag: may be wildcards. size: bytes of its buffer."""
        super().__init__()
        self._source = source
        self._tag = tag
        self._size = size
        self.cancel: Callable[[], object] | None = None
        self.source_failure = ""

    @property
    def what(self) -> str:
        note = f" (meanwhile, {self.source_failure})" if self.source_failure else ""
        return f"a receive from {_describe_source_and_tag(self._source, self._tag)}, {self._size} bytes{note}"


class ProbeCompletion(Completion[ProbeResult | None]):
    """A probe in progress."""

    __slots__ = ("_source", "_tag")

    def __init__(self, source: int, tag: int) -> None:
        """source, tag: may be wildcards."""
        super().__init__()
        self._source = source
        self._tag = tag

    @property
    def what(self) -> str:
        return f"a message from {_describe_source_and_tag(self._source, self._tag)}"


class FailureRecipient(Enum):
    """The party to which a send reports its failure directly."""

    CALLER = "the call that sends, until it returns"
    REQUEST = "the request, until it has been waited for"
    NONE = "no party: the program has continued"


class SendCompletion(Completion[Envelope]):
    """A send in progress.

    A protocol whose sends end when the message has been received calls `complete`. A protocol that buffers calls `release`
    when the program may reuse its buffer, and later `deliver` or `lose`, unless the run ends before the outcome is known.

    destination: the device's rank. context: the message's. is_unconfirmed: the send is complete, but whether its message
    has arrived is not known yet. on_outcome: called once, when that is known: `result` then raises the error of a lost
    message. parent: for a message of a pickled object, the send of that object, which fails with this one.
    """

    __slots__ = (
        "_failure_recipient",
        "_lost_sends",
        "context",
        "destination",
        "is_unconfirmed",
        "on_outcome",
        "parent",
    )

    def __init__(
        self,
        what: str = "a send to rank %s, tag %s, %s bytes",
        destination: int = ANY_SOURCE,
        tag: int = 0,
        size: int = 0,
        context: int = -1,
        lost_sends: LostSends | None = None,
    ) -> None:
        """what: %-format for destination, tag and size (bytes). lost_sends: records its failure; None: failures need not be
        reported."""
        super().__init__(what, destination, tag, size)
        self.destination: Final = destination
        self.context: Final = context
        self.is_unconfirmed = False
        self.on_outcome: Callable[[SendCompletion], object] | None = None
        self.parent: SendCompletion | None = None
        self._failure_recipient = FailureRecipient.CALLER
        self._lost_sends = lost_sends

    @property
    def has_request(self) -> bool:
        """Whether a request will report its outcome."""
        return self._failure_recipient is FailureRecipient.REQUEST

    def release(self, envelope: Envelope) -> None:
        """Complete the send: its buffer may be reused."""
        self.is_unconfirmed = True
        self.complete(envelope)

    def deliver(self) -> None:
        """Record that its message has arrived."""
        self.is_unconfirmed = False
        if self.on_outcome is not None:
            self.on_outcome(self)

    def lose(self, error: MPIError) -> None:
        """Record that the message of a completed send has not arrived, or that this will remain unknown."""
        self._error = error
        self._note_failure()
        self.deliver()  # the outcome is known; `on_outcome` finds the error in `result`
        self._report(error)

    def abandon(self, error: MPIError) -> None:
        """Fail a send whose session with the peer has ended: `lose` it if it is complete but unconfirmed, `fail` it if it
        is not complete."""
        if self.is_unconfirmed:
            self.lose(error)
        elif not self.done:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self._note_failure()
        super().fail(error)
        if self._failure_recipient is not FailureRecipient.CALLER:
            self._report(error)

    def report_failures_to(self, recipient: FailureRecipient) -> None:
        """Set the recipient of failures once the call that has begun the send returns."""
        self._failure_recipient = recipient
        if self._error is not None:
            self._report(self._error)

    def mark_reported(self) -> None:
        """Record that the program has waited for its request, which has reported the outcome so far."""
        self._failure_recipient = FailureRecipient.NONE
        if self._lost_sends is not None and self._lost_sends.unreported:
            self._lost_sends.discard(self)

    def failure(self) -> MPIError:
        """Return the error of this send, which must have failed."""
        assert isinstance(self._error, MPIError)
        return self._error

    def _note_failure(self) -> None:
        if self._lost_sends is not None:
            self._lost_sends.destinations.add(self.destination)

    def _report(self, error: Exception) -> None:
        """Report a failure to the send of which this is a part; otherwise to `LostSends`."""
        parent = self.parent
        if parent is None:
            if self._lost_sends is not None and isinstance(error, MPIError):
                self._lost_sends.add(self)
        elif not parent.done:
            parent.fail(error)
        elif isinstance(error, MPIError):
            parent.lose(error)


class LostSends:
    """Failed sends of one node whose failures no call has reported, shared by its communicators."""

    __slots__ = ("_rank_failures", "_reporter", "destinations", "unreported")

    def __init__(self, rank_failures: RankFailures) -> None:
        """rank_failures: wakes the collective calls in progress, which a lost message may concern."""
        self._rank_failures: Final = rank_failures
        self.destinations: Final[set[int]] = set()
        """Ranks to which any send has failed, reported or not."""
        self.unreported: list[SendCompletion] = []
        self._reporter: Callable[[str], object] | None = None

    def add(self, send: SendCompletion) -> None:
        """Add a failed send, or report it if the program has ended."""
        if self._reporter is not None:
            self._reporter(_describe_loss(send))
        elif send not in self.unreported:
            self.unreported.append(send)
            self._rank_failures.wake()

    def discard(self, send: Completion[Envelope]) -> None:
        """Remove a send whose failure has been reported."""
        self.unreported = [lost for lost in self.unreported if lost is not send]

    def check(self, contexts: Collection[int], peer: int) -> None:
        """Raise MPIError, once, if messages to a rank are lost and no request can report that. contexts: contexts of the
        messages. peer: the rank, or ANY_SOURCE for all."""
        self._raise_for(
            [
                send
                for send in self.unreported
                if not send.has_request and send.context in contexts and peer in (ANY_SOURCE, send.destination)
            ]
        )

    def finish(self) -> None:
        """Raise MPIError if failures are unreported, since the program makes no further call."""
        self._raise_for(self.unreported)

    def close(self, report: Callable[[str], object]) -> None:
        """Report losses to a callback, since the program has ended. report: called with a sentence for each unreported
        loss, now and later."""
        for send in self.unreported:
            report(_describe_loss(send))
        self.unreported = []
        self._reporter = report

    def _raise_for(self, lost: list[SendCompletion]) -> None:
        if not lost:
            return
        self.unreported = [send for send in self.unreported if send not in lost]
        more = f"; and {len(lost) - 1} more" if len(lost) > 1 else ""
        error = lost[0].failure()
        raise MPIError(error.error_class, _describe_loss(lost[0]) + more)


AnyCompletion = Completion[Envelope] | Completion[ProbeResult | None]


class _QueuedTransfer(NamedTuple):
    """A transfer that waits for a descriptor. begin: begins it; returns False without a free descriptor. source, context,
    tag: those of a receive; context is _NO_CONTEXT for other transfers, which `matches` ignores."""

    begin: Callable[[], bool]
    completion: AnyCompletion
    source: int
    context: int
    tag: int

    def matches(self, context: int, envelope: Envelope) -> bool:
        return (
            self.context == context
            and self.source in (ANY_SOURCE, envelope.source)
            and self.tag in (ANY_TAG, envelope.tag)
        )


_NO_CONTEXT: Final = -1


class Device:
    """A node's endpoint with queues of transfers; all communicators of the node share one device."""

    __slots__ = (
        "_dropping",
        "_endpoint",
        "_in_progress",
        "_is_pumping",
        "_last_continuation",
        "_receives",
        "_scattering",
        "_sends",
        "attached_buffer",
        "contexts",
        "contexts_in_use",
        "lost_sends",
        "mailbox",
        "mailbox_context_tag",
        "mailbox_slots",
        "max_message_size",
        "max_tag",
        "rank",
        "rank_failures",
        "received",
        "sent",
        "size",
    )  # fmt: skip

    def __init__(self, endpoint: MatchingEndpoint) -> None:
        self._endpoint = endpoint
        self._scattering = endpoint if isinstance(endpoint, ScatteringEndpoint) else None
        self._dropping = endpoint if isinstance(endpoint, DroppingEndpoint) else None
        self.rank = endpoint.rank
        self.size = endpoint.size
        self.mailbox_slots: Final = self._dropping.slots if self._dropping is not None else 0
        """Receives of the mailbox, which collective calls use if the NIC drops messages without a receive; 0: no mailbox."""
        self.contexts = endpoint.contexts
        self.mailbox_context_tag: Final = (1, endpoint.max_tag - 1)
        """Context and tag of the mailbox's messages: the library's context of the first communicator, and a tag that no
        collective call uses."""
        self.max_tag = endpoint.max_tag
        self.max_message_size = endpoint.max_message_size
        self.contexts_in_use: set[int] = set()
        """Numbers of communicators in use on this node."""
        self.rank_failures: Final = RankFailures()
        self.lost_sends: Final = LostSends(self.rank_failures)
        self.attached_buffer: SendBuffer | None = None
        """The program's own buffer for buffered sends (MPI_Buffer_attach)."""
        self.mailbox: Mailbox | None = None
        """Created by the first collective call."""
        self.sent: Final[dict[int, int]] = {}
        """Number of the program's point-to-point messages by destination, without cancelled ones."""
        self.received: Final[dict[int, int]] = {}
        """Number of the program's received point-to-point messages by source."""
        self._sends: deque[_QueuedTransfer] = deque()  # waiting for descriptors
        self._receives: deque[_QueuedTransfer] = deque()  # including waiting probes
        self._in_progress = 0
        self._is_pumping = False
        self._last_continuation = -1

    def on_crash(self, rank: int, restarts: bool) -> None:
        """Handle the launcher's report that a rank has crashed. restarts: whether it will be started again; then the
        protocol ends the transfers with it, when it detects the new incarnation."""
        self.rank_failures.report(rank)
        if not restarts and isinstance(self._endpoint, CrashAwareEndpoint):
            self._endpoint.report_crash(rank)

    async def connect(self) -> None:
        """Connect the ranks before the program begins, if the protocol has connections. Raises MPIError as
        `ConnectingEndpoint.connect_ranks`."""
        if isinstance(self._endpoint, ConnectingEndpoint):
            await self._endpoint.connect_ranks()

    def send(self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False) -> SendCompletion:
        """Begin a send, or queue it. synchronous: the send does not complete before its message is matched."""
        if not context % 2:  # the program's, not the library's
            self.sent[destination] = self.sent.get(destination, 0) + 1
        completion = SendCompletion(
            destination=destination, tag=tag, size=len(data), context=context, lost_sends=self.lost_sends
        )
        begin: Callable[[], bool]
        if isinstance(data, IoVec) and self._scattering is not None and self._scattering.is_gathered(data):
            begin = partial(self._scattering.send_iov, destination, context, tag, data, synchronous, completion)
        else:
            contiguous = data.gather() if isinstance(data, IoVec) else data
            send = self._endpoint.send_synchronously if synchronous else self._endpoint.send
            begin = partial(send, destination, context, tag, contiguous, completion)
        self._begin_or_queue(self._sends, begin, completion, destination, _NO_CONTEXT, tag)
        return completion

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> ReceiveCompletion:
        """Begin a receive, or queue it. source: a rank, or ANY_SOURCE. tag: a tag, or ANY_TAG."""
        completion = ReceiveCompletion(source, tag, len(buffer))
        begin: Callable[[], bool]
        if isinstance(buffer, IoVec) and self._scattering is not None and self._scattering.is_gathered(buffer):
            begin = partial(self._scattering.receive_iov, source, context, tag, buffer, completion)
        else:
            begin = partial(
                self._endpoint.receive, source, context, tag, self._contiguous(buffer, completion), completion
            )
        self._begin_or_queue(self._receives, begin, completion, source, context, tag)
        if not context % 2:  # the program's, not the library's
            completion.add_callback(self._count_received)
        return completion

    def receive_standing(self, buffer: memoryview) -> ReceiveCompletion | None:
        """Post a receive of the mailbox, from any rank; return None if no descriptor is free. It does not count as a
        transfer in progress: queued transfers do not wait for its descriptor."""
        context, tag = self.mailbox_context_tag
        completion = ReceiveCompletion(ANY_SOURCE, tag, len(buffer))
        assert self._dropping is not None
        return completion if self._dropping.receive_standing(context, tag, buffer, completion) else None

    def receive_claimed(self, probe_result: ProbeResult, context: int, buffer: Data) -> ReceiveCompletion:
        """Begin to receive a message that a probe in that context has claimed, or queue the receive."""
        source, tag, _ = probe_result.envelope
        completion = ReceiveCompletion(source, tag, len(buffer))
        begin = partial(self._endpoint.receive_claimed, probe_result, self._contiguous(buffer, completion), completion)
        self._begin_or_queue(self._receives, begin, completion, source, _NO_CONTEXT, tag)
        if not context % 2:  # the program's, not the library's
            completion.add_callback(self._count_received)
        return completion

    def probe(
        self, source: int, context: int, tag: int, wait: bool = True, claim: bool = False
    ) -> Completion[ProbeResult | None]:
        """Find the message that a receive, begun now, would match. wait: until there is one; otherwise the result is None if
        there is none yet, or if that cannot be determined (no descriptor is free, or queued receives precede a claim).
        claim: only `receive_claimed` can receive the message afterwards."""
        completion = ProbeCompletion(source, tag)
        if wait:
            begin = partial(self._endpoint.probe, source, context, tag, True, claim, completion)
            self._begin_or_queue(self._receives, begin, completion, source, _NO_CONTEXT, tag)
            return completion
        # Queued receives precede the probe, although they have not been posted to the NIC yet.
        if not self._receives:
            if not self._endpoint.probe(source, context, tag, False, claim, completion):
                completion.complete(None)
        elif claim:
            completion.complete(None)  # a claim could not be undone if a queued receive precedes the probe
        else:
            endpoint_probe = ProbeCompletion(source, tag)
            endpoint_probe.add_callback(partial(self._exclude_queued_receives, context, completion))
            if not self._endpoint.probe(source, context, tag, False, False, endpoint_probe):
                endpoint_probe.complete(None)
        return completion

    def cancel(self, completion: Completion[Envelope]) -> None:
        """Complete a transfer with CANCELLED, if possible: a queued send, a receive without a message. A send of an
        object in two messages cannot be cancelled."""
        for queue in (self._receives, self._sends):
            for queued in queue:
                if queued.completion is completion:
                    queue.remove(queued)
                    if isinstance(completion, SendCompletion) and not completion.context % 2:
                        self.sent[completion.destination] -= 1
                    completion.complete(CANCELLED)
                    return
        if isinstance(completion, ReceiveCompletion) and completion.cancel is not None and not completion.done:
            completion.cancel()

    def _count_received(self, completion: Completion[Envelope]) -> None:
        try:
            envelope = completion.result()
        except MPIError as error:  # a message that is longer than the buffer has been received, too
            if error.envelope is None:
                return
            envelope = error.envelope
        if envelope is not CANCELLED:
            self.received[envelope.source] = self.received.get(envelope.source, 0) + 1

    def note_collective(self, call: str, communicator: Communicator, arguments: CallArguments) -> None:
        """Do nothing. The device of a history (`testbed.workloads.history`) records the call instead, so that the calls of
        all ranks can be compared."""

    def next_continuation(self) -> int:
        """Return an odd tag for a continuation, unused by this node until the tags wrap around. (Collective calls use the
        even tags.)"""
        next_tag = self._last_continuation + 2
        self._last_continuation = next_tag = next_tag if next_tag <= self.max_tag else 1
        return next_tag

    def pending_work(self) -> list[str]:
        """Return a sentence for each transfer that waits for a descriptor; reports of stalls show them."""
        return [
            f"{queued.completion.what}: no descriptor is free"
            for queue in (self._sends, self._receives)
            for queued in queue
        ]

    def _contiguous(self, buffer: Data, completion: ReceiveCompletion) -> memoryview:
        """Return contiguous memory for a message that the NIC does not scatter; `completion` scatters it to an I/O
        vector."""
        if isinstance(buffer, IoVec):
            contiguous = memoryview(bytearray(len(buffer)))
            # This callback comes first, so that other callbacks find the scattered data.
            completion.add_callback(partial(_scatter, buffer, contiguous))
            buffer = contiguous
        # No message is longer than max_message_size, so the posted buffer need not be, either.
        return buffer[: self.max_message_size]

    def _exclude_queued_receives(
        self, context: int, completion: Completion[ProbeResult | None], endpoint_probe: Completion[ProbeResult | None]
    ) -> None:
        probe_result = endpoint_probe.result()
        is_matched = probe_result is not None and any(
            receive.matches(context, probe_result.envelope) for receive in self._receives
        )
        completion.complete(None if is_matched else probe_result)

    def _begin_or_queue(
        self,
        queue: deque[_QueuedTransfer],
        begin: Callable[[], bool],
        completion: AnyCompletion,
        source: int,
        context: int,
        tag: int,
    ) -> None:
        if queue or not self._try_begin(begin, completion):
            queue.append(_QueuedTransfer(begin, completion, source, context, tag))
            if not self._in_progress:
                self._pump()

    def _try_begin(self, begin: Callable[[], bool], completion: AnyCompletion) -> bool:
        self._in_progress += 1
        if begin():
            completion.add_callback(self._on_transfer_done)
            return True
        self._in_progress -= 1
        return False

    def _on_transfer_done(self, _: object) -> None:
        self._in_progress -= 1
        if self._sends or self._receives:
            self._pump()

    def _pump(self) -> None:
        """Begin queued transfers while descriptors are free. A transfer that completes at once calls this method again,
        which returns: the running loop continues, so that a chain of such transfers does not grow the stack."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            again = True
            while again:
                again = False
                for queue in (self._sends, self._receives):
                    while queue and self._try_begin(queue[0].begin, queue[0].completion):
                        queue.popleft()
                        again = True
                    if queue and not self._in_progress:
                        completion = queue.popleft().completion
                        completion.fail(
                            MPIError(ERR_NO_MEM, f"{completion.what}: the NIC has too few descriptors for it")
                        )
                        again = True
        finally:
            self._is_pumping = False


class ObjectDevice(Protocol):
    """The part of `Device` that messages of objects use; the device of a history implements it, too."""

    @property
    def max_message_size(self) -> int: ...

    @property
    def lost_sends(self) -> LostSends: ...

    @property
    def next_continuation(self) -> Callable[[], int]: ...

    def send(
        self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False
    ) -> SendCompletion: ...

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> ReceiveCompletion: ...

    def receive_claimed(self, probe_result: ProbeResult, context: int, buffer: Data) -> ReceiveCompletion: ...


def send_object(
    device: ObjectDevice, destination: int, contexts: tuple[int, int], tag: int, obj: object, synchronous: bool = False
) -> SendCompletion:
    """Pickle an object and begin to send it, as `send_pickled`. Raises the exceptions of pickling, too."""
    return send_pickled(device, destination, contexts, tag, pickle_object(obj), synchronous)


def pickle_object(obj: object) -> bytes:
    """Pickle an object with the functions that the program may have replaced (`Pickle`)."""
    return pickler.dumps(obj)


def send_pickled(
    device: ObjectDevice, destination: int, contexts: tuple[int, int], tag: int, data: bytes, synchronous: bool = False
) -> SendCompletion:
    """Begin to send a pickled object. contexts: contexts of the communicator's messages, and of its continuations.
    synchronous: the send does not complete before its message is matched. Raises MPIError (ERR_COUNT) for an object that is
    too large."""
    size = len(data)
    if size <= FIRST_SIZE:
        return device.send(destination, contexts[0], tag, memoryview(data), synchronous)
    if size - _FIRST_PAYLOAD > device.max_message_size:
        raise MPIError(
            ERR_COUNT,
            f"a pickled object must have at most {device.max_message_size + _FIRST_PAYLOAD} bytes, got {size}",
        )
    view = memoryview(data)
    continuation = device.next_continuation()
    description = "a send of an object to rank %s, tag %s, %s bytes"
    parent = SendCompletion(description, destination, tag, size, contexts[0], device.lost_sends)
    head = memoryview(_HEADER.pack(_MAGIC, continuation, size) + view[:_FIRST_PAYLOAD])
    send_rest = partial(_send_rest, device, destination, contexts[1], continuation, view[_FIRST_PAYLOAD:], parent)
    first = device.send(destination, contexts[0], tag, head, synchronous)
    first.parent = parent
    first.add_callback(send_rest)
    return parent


def _send_rest(
    device: ObjectDevice,
    destination: int,
    context: int,
    continuation: int,
    rest: memoryview,
    parent: SendCompletion,
    first: Completion[Envelope],
) -> None:
    try:
        first.result()
    except MPIError as error:
        parent.fail(error)
        return
    if first.result() is CANCELLED:
        parent.complete(CANCELLED)
    else:
        last = device.send(destination, context, continuation, rest)
        last.parent = parent
        last.add_callback(partial(_complete_parent, parent))


def _complete_parent(parent: SendCompletion, last: Completion[Envelope]) -> None:
    if parent.done:
        return  # its first message was lost
    try:
        parent.complete(last.result())
    except MPIError as error:
        parent.fail(error)


class ObjectReceive:
    """A receive of an object. completion: completes with an envelope whose length is that of the pickle; fails as a receive
    does, but with ERR_TYPE for a message of more than FIRST_SIZE bytes, which is not an object's first one, and with
    ERR_NO_MEM if there is no memory for the object. data: the pickle, once the receive is complete. first_receive: the
    receive of the first message."""

    __slots__ = ("_contexts", "_device", "_envelope", "completion", "data", "first_receive")

    def __init__(
        self,
        device: ObjectDevice,
        source: int,
        contexts: tuple[int, int],
        tag: int,
        probe_result: ProbeResult | None = None,
    ) -> None:
        """contexts: as for `send_pickled`. probe_result: the first message, if a probe has claimed it."""
        self._device = device
        self._contexts = contexts
        self.data = memoryview(bytearray(FIRST_SIZE))
        self._envelope: Envelope
        if probe_result is None:
            self.first_receive = device.receive(source, contexts[0], tag, self.data)
        else:
            self.first_receive = device.receive_claimed(probe_result, contexts[0], self.data)
        self.completion: Completion[Envelope] = Completion("%s", self.first_receive)
        self.first_receive.add_callback(self._on_first_message)

    def load(self) -> object:
        """Unpickle the complete object; an empty message gives None, as in mpi4py. Raises MPIError (ERR_TYPE) in place of
        pickle.UnpicklingError and EOFError, since the bytes are then not a pickle, and the other exceptions of
        unpickling."""
        if not self.data:
            return None
        try:
            return pickler.loads(self.data)
        except (pickle.UnpicklingError, EOFError) as error:
            raise _not_an_object(self._envelope) from error

    def _on_first_message(self, first: Completion[Envelope]) -> None:
        try:
            source, tag, length = envelope = first.result()
        except MPIError as error:
            self.completion.fail(_not_an_object(error.envelope) if error.error_class == ERR_TRUNCATE else error)
            return
        if envelope is CANCELLED:
            self.completion.complete(envelope)
            return
        if length != FIRST_SIZE or self.data[: len(_MAGIC)] != _MAGIC:
            self._envelope = envelope
            self.data = self.data[:length]
            self.completion.complete(envelope)
            return
        _, continuation, size = _HEADER.unpack_from(self.data)
        self._envelope = Envelope(source, tag, size)
        begin = self.data[_HEADER.size :]
        try:
            self.data = memoryview(bytearray(size))
        except (MemoryError, OverflowError):
            self.completion.fail(MPIError(ERR_NO_MEM, f"no memory for an object of {size} bytes", self._envelope))
            return
        self.data[:_FIRST_PAYLOAD] = begin
        rest = self._device.receive(source, self._contexts[1], continuation, self.data[_FIRST_PAYLOAD:])
        rest.add_callback(self._on_continuation)

    def _on_continuation(self, rest: Completion[Envelope]) -> None:
        try:
            rest.result()
        except MPIError as error:
            self.completion.fail(error)
        else:
            self.completion.complete(self._envelope)


def _not_an_object(envelope: Envelope | None) -> MPIError:
    origin = f" from rank {envelope.source}, tag {envelope.tag}," if envelope else ""
    return MPIError(
        ERR_TYPE,
        f"the message{origin} is not a pickled object, or has more than {FIRST_SIZE} bytes: use Recv for it",
        envelope,
    )


def null_transfer() -> SendCompletion:
    """Make a completed transfer with PROC_NULL."""
    completion = SendCompletion("a transfer with rank %s, tag %s, %s bytes", PROC_NULL)
    completion.complete(PROC_NULL_ENVELOPE)
    return completion


def _scatter(iov: IoVec, contiguous: memoryview, completion: Completion[Envelope]) -> None:
    try:
        length = completion.result().length
    except MPIError as error:
        length = error.envelope.length if error.envelope is not None else 0
    iov.scatter(contiguous[:length])


def _describe_source_and_tag(source: int, tag: int) -> str:
    origin = f"rank {source}" if source >= 0 else "any rank"
    return f"{origin}, tag {tag}" if tag >= 0 else f"{origin}, any tag"


def _describe_loss(send: SendCompletion) -> str:
    return f"{send.what}, was reported done, and has failed since: {send.failure()}"

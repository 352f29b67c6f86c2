"""Sends and receives in progress, of bytes and of objects, and the queues in front of a host library. MPICH, from which
EMP's own MPI is derived, calls this a device.

A host library that matches messages (`MatchingEndpoint`) sends and receives messages by rank, context and tag as long
as it has descriptors. `Device` lets a program begin any number of transfers: those without a descriptor wait for one.
Sends queue behind sends and receives behind receives, so each kind is begun in the program's order, which keeps
matching in order.

A send tracks its message after the program has continued (`SendCompletion`). MPI 4.1, section 3.4: a standard send may
complete before its message has been received. Section 9.3: a later failure is reported by a later call related to the
same operation, if there is one. So a request that has not been waited for reports it. If no such call is left, the next
call that involves the same rank, in the message's communicator, reports it with class ERR_PROC_FAILED, which is about a
rank (ULFM). Failures that no call has reported are reported when the program ends.

The receiver of a pickled object does not know its size, and EMP has no probe that would tell. So an object's message
has at most FIRST bytes, for which every receive of an object has room: a head (magic, tag of the continuation, bytes of
the pickle) and the beginning of the pickle. The rest is a second message, the continuation. It uses a context of the
library's own, under a tag that the sender uses for nothing else, so only the receive that follows the first one can
take it: matching and order are those of the first message alone, wildcards included. The continuation is sent when the
first message is complete. On EMP that means that it has been received, so the continuation usually finds its receive.
FIRST is a page: one descriptor, and at 1500 bytes a frame one collection of EMP's. As always with pickle, the receiver
must trust the sender.
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
from protocols.mpi.rank_failures import RankFailures
from protocols.mpi.endpoints import ConnectingEndpoint, DroppingEndpoint, MatchingEndpoint, ScatteringEndpoint
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

if TYPE_CHECKING:
    from protocols.mpi.mailbox import Mailbox
    from protocols.mpi.send_buffer import SendBuffer


FIRST: Final = 4096
_MAGIC: Final = bytes.fromhex("80500059 9d1ce4a7 53f0b26e 4d8801c5")  # ours: no pickle begins so
_HEAD: Final = Struct("!16sIQ")
_ROOM: Final = FIRST - _HEAD.size


class Pickle:
    """The functions that convert objects, which a program may replace (mpi4py's MPI.pickle). PROTOCOL: of pickle."""

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


class Communicator(NamedTuple):
    """A communicator as its collective calls name it. ranks: the device's; None: all. number: of the call in it, from 0."""

    context: int
    ranks: Sequence[int] | None
    number: int


class CallArguments(NamedTuple):
    """Arguments of a collective call that ranks must agree on. root, size: equal at all ranks; size in bytes, of each
    block; -1: there is none. op, datatype: names, of reductions. out, into: bytes to each rank, and from each."""

    root: int = -1
    size: int = -1
    op: str = ""
    datatype: str = ""
    out: Sequence[int] | None = None
    into: Sequence[int] | None = None


class ProbeResult(NamedTuple):
    """Result of a probe. handle: the endpoint's own, for `receive_claimed`."""

    envelope: Envelope
    handle: "object"  # noqa: UP037  mypyc looks the name up among the module's, and does not find it


class ReceiveCompletion(Completion[Envelope]):
    """A receive in progress. cancel: set by the endpoint that has it, to cancel it: it then completes with
    CANCELLED, unless it has matched a message."""

    __slots__ = ("_size", "_source", "_tag", "cancel")

    def __init__(self, source: int, tag: int, size: int) -> None:
        """source, tag: may be wildcards. size: bytes of its buffer."""
        super().__init__()
        self._source = source
        self._tag = tag
        self._size = size
        self.cancel: Callable[[], object] | None = None

    @property
    def what(self) -> str:
        return f"a receive from {_sought(self._source, self._tag)}, {self._size} bytes"


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
        return f"a message from {_sought(self._source, self._tag)}"


class FailureRecipient(Enum):
    """The party to which a send itself reports its failure."""

    CALLER = "the call that sends, until it returns"
    REQUEST = "the request, until it has been waited for"
    PROC_NULL_ENVELOPE = "nobody: the program has gone on"


class SendCompletion(Completion[Envelope]):
    """A send in progress.

    A protocol that acknowledges reception completes it. One that buffers calls `release` when the program may reuse its
    buffer, and later `deliver` or `lose`, unless the run ends before the outcome is known.

    destination: the device's rank. context: the message's. is_open: it is complete, and its message's arrival is not
    known yet. on_outcome: called once, when that is known: `result` then raises the error if it has not arrived. whole:
    the send of which this is a part, and which fails with it.
    """

    __slots__ = ("_lost_sends", "_observer", "context", "destination", "is_open", "on_outcome", "whole")

    def __init__(
        self,
        what: str = "a send to rank %s, tag %s, %s bytes",
        destination: int = ANY_SOURCE,
        tag: int = 0,
        size: int = 0,
        context: int = -1,
        lost_sends: LostSends | None = None,
    ) -> None:
        """what: %-format for destination, tag and size (bytes). lost_sends: None if its failure need not be reported."""
        super().__init__(what, destination, tag, size)
        self.destination: Final = destination
        self.context: Final = context
        self.is_open = False
        self.on_outcome: Callable[[SendCompletion], object] | None = None
        self.whole: SendCompletion | None = None
        self._observer = FailureRecipient.CALLER
        self._lost_sends = lost_sends

    @property
    def has_request(self) -> bool:
        """Whether a request will report its outcome."""
        return self._observer is FailureRecipient.REQUEST

    def release(self, envelope: Envelope) -> None:
        """Complete it: its buffer may be reused."""
        self.is_open = True
        self.complete(envelope)

    def deliver(self) -> None:
        """Record that its message has arrived."""
        self.is_open = False
        if self.on_outcome is not None:
            self.on_outcome(self)

    def lose(self, error: MPIError) -> None:
        """Record that its message has not arrived, or that the outcome will remain unknown, and complete it."""
        self._error = error
        self.deliver()
        self._report(error)

    def abandon(self, error: MPIError) -> None:
        """End it because of its peer, as far as its outcome is open: `lose` it if the program may have reused its buffer,
        and otherwise `fail` it."""
        if self.is_open:
            self.lose(error)
        elif not self.done:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        super().fail(error)
        if self._observer is not FailureRecipient.CALLER:
            self._report(error)

    def report_failures_to(self, observer: FailureRecipient) -> None:
        """Set who reports a failure, when the call that has begun the send returns."""
        self._observer = observer
        if self._error is not None:
            self._report(self._error)

    def taken(self) -> None:
        """Record that its request has been waited for, and has reported its outcome so far."""
        self._observer = FailureRecipient.NONE
        if self._lost_sends is not None and self._lost_sends.known:
            self._lost_sends.discard(self)

    def failure(self) -> MPIError:
        """Return the error of a failed send."""
        assert isinstance(self._error, MPIError)
        return self._error

    def _report(self, error: Exception) -> None:
        whole = self.whole
        if whole is None:
            if self._lost_sends is not None and isinstance(error, MPIError):
                self._lost_sends.add(self)
        elif not whole.done:
            whole.fail(error)
        elif isinstance(error, MPIError):
            whole.lose(error)


class LostSends:
    """Failed sends of one node that its program has not been notified of, shared by its communicators."""

    __slots__ = ("_departures", "_tell", "known")

    def __init__(self, rank_failures: RankFailures) -> None:
        """rank_failures: has the collective calls that wait."""
        self._departures: Final = rank_failures
        self.known: list[SendCompletion] = []
        self._tell: Callable[[str], object] | None = None

    def add(self, dispatch: SendCompletion) -> None:
        if self._tell is not None:
            self._tell(_sentence(dispatch))
        elif dispatch not in self.known:
            self.known.append(dispatch)
            self._departures.wake()

    def discard(self, dispatch: Completion[Envelope]) -> None:
        """Remove a send that was reported to its program."""
        self.known = [known for known in self.known if known is not dispatch]

    def check(self, contexts: Collection[int], peer: int) -> None:
        """Raise MPIError, once, if messages to this rank are lost that no request can report. peer: a rank, or
        ANY_SOURCE."""
        self._raise(
            [
                known
                for known in self.known
                if not known.has_request and known.context in contexts and peer in (ANY_SOURCE, known.destination)
            ]
        )

    def finish(self) -> None:
        """Raise MPIError for all of them, since the program makes no further call."""
        self._raise(self.known)

    def close(self, tell: Callable[[str], object]) -> None:
        """Report lost_sends elsewhere, since the program has ended. tell: is given a sentence for each unreported loss, now
        and later."""
        for dispatch in self.known:
            tell(_sentence(dispatch))
        self.known = []
        self._tell = tell

    def _raise(self, lost: list[SendCompletion]) -> None:
        if not lost:
            return
        self.known = [known for known in self.known if known not in lost]
        more = f"; and {len(lost) - 1} more" if len(lost) > 1 else ""
        error = lost[0].failure()
        raise MPIError(error.error_class, _sentence(lost[0]) + more)


AnyCompletion = Completion[Envelope] | Completion[ProbeResult | None]


class _Waiting(NamedTuple):
    """A transfer that waits for a descriptor. source, context, tag: what it receives; context is -1 if it receives
    nothing."""

    begin: Callable[[], bool]
    completion: AnyCompletion
    source: int
    context: int
    tag: int

    def takes(self, context: int, envelope: Envelope) -> bool:
        return (
            self.context == context
            and self.source in (ANY_SOURCE, envelope.source)
            and self.tag in (ANY_TAG, envelope.tag)
        )


_NOTHING: Final = -1


class Device:
    """A node's endpoint with queues in front; all of the node's communicators share one."""

    __slots__ = (
        "_continuation", "_dropping", "_endpoint", "_pumping", "_receives", "_scattering", "_sends", "_under_way",
        "attached_buffer", "contexts", "rank_failures", "lost_sends", "mailbox", "max_message_size", "max_tag", "rank", "size", "mailbox_slots",
        "mailbox_context_tag", "contexts_in_use",
    )  # fmt: skip

    def __init__(self, endpoint: MatchingEndpoint) -> None:
        self._endpoint = endpoint
        self._scattering = endpoint if isinstance(endpoint, ScatteringEndpoint) else None
        self._dropping = endpoint if isinstance(endpoint, DroppingEndpoint) else None
        self.rank = endpoint.rank
        self.size = endpoint.size
        self.mailbox_slots: Final = self._dropping.slots if self._dropping is not None else 0
        """Receives of the mailbox that collective calls need, where the NIC drops what has no receive; 0: they need none."""
        self.contexts = endpoint.contexts
        self.mailbox_context_tag: Final = (1, endpoint.max_tag - 1)
        """Context and tag of the mailbox's messages: the library's of the first communicator, and one that no call has."""
        self.max_tag = endpoint.max_tag
        self.max_message_size = endpoint.max_message_size
        self.contexts_in_use: set[int] = set()
        """Numbers of communicators in use on this node."""
        self.rank_failures: Final = RankFailures()
        self.lost_sends: Final = LostSends(self.rank_failures)
        self.attached_buffer: SendBuffer | None = None
        """The program's own buffer for buffered sends (MPI_Buffer_attach)."""
        self.mailbox: Mailbox | None = None
        """Made by the first collective call."""
        self._sends: deque[_Waiting] = deque()  # waiting for descriptors
        self._receives: deque[_Waiting] = deque()  # including waiting probes
        self._under_way = 0
        self._pumping = False
        self._continuation = -1

    async def connect(self) -> None:
        """Make the connections that a program is to find, where the protocol has any. Raises MPIError."""
        if isinstance(self._endpoint, ConnectingEndpoint):
            await self._endpoint.connect_ranks()

    def send(self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False) -> SendCompletion:
        """Begin a send, or queue it. synchronous: it does not complete before it is matched."""
        completion = SendCompletion(destination=destination, tag=tag, size=len(data), context=context, lost_sends=self.lost_sends)
        begin: Callable[[], bool]
        if isinstance(data, IoVec) and self._scattering is not None and self._scattering.is_gathered(data):
            begin = partial(self._scattering.send_iov, destination, context, tag, data, synchronous, completion)
        else:
            whole = data.gather() if isinstance(data, IoVec) else data
            send = self._endpoint.send_synchronously if synchronous else self._endpoint.send
            begin = partial(send, destination, context, tag, whole, completion)
        self._begin(self._sends, begin, completion, destination, _NOTHING, tag)
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
        self._begin(self._receives, begin, completion, source, context, tag)
        return completion

    def receive_standing(self, buffer: memoryview) -> ReceiveCompletion | None:
        """Post a receive of the mailbox, from any rank; None if no descriptor is free. It is no transfer in progress: others
        do not wait for its descriptor."""
        context, tag = self.mailbox_context_tag
        completion = ReceiveCompletion(ANY_SOURCE, tag, len(buffer))
        assert self._dropping is not None
        return completion if self._dropping.receive_standing(context, tag, buffer, completion) else None

    def receive_claimed(self, found: ProbeResult, context: int, buffer: Data) -> ReceiveCompletion:  # noqa: ARG002  histories tell it
        """Receive a message that a probe in that context has claimed, or queue this."""
        source, tag, _ = found.envelope
        completion = ReceiveCompletion(source, tag, len(buffer))
        begin = partial(self._endpoint.receive_claimed, found, self._contiguous(buffer, completion), completion)
        self._begin(self._receives, begin, completion, source, _NOTHING, tag)
        return completion

    def probe(
        self, source: int, context: int, tag: int, wait: bool = True, claim: bool = False
    ) -> Completion[ProbeResult | None]:
        """Find the message that a receive, begun now, would get; without wait, None if there is none yet. claim: only
        `receive_claimed` can receive it then."""
        completion = ProbeCompletion(source, tag)
        if wait:
            begin = partial(self._endpoint.probe, source, context, tag, True, claim, completion)
            self._begin(self._receives, begin, completion, source, _NOTHING, tag)
            return completion
        # Receives queued here were begun earlier, though the NIC does not know of them.
        if not self._receives:
            if not self._endpoint.probe(source, context, tag, False, claim, completion):
                completion.complete(None)
        elif claim:
            completion.complete(None)
        else:
            looked = ProbeCompletion(source, tag)
            looked.add_callback(partial(self._leave_to_receives, context, completion))
            if not self._endpoint.probe(source, context, tag, False, False, looked):
                looked.complete(None)
        return completion

    def cancel(self, completion: Completion[Envelope]) -> None:
        """Complete a transfer with CANCELLED, if possible: a send until it has been begun, a receive until it is
        matched."""
        for queue in (self._receives, self._sends):
            for waiting in queue:
                if waiting.completion is completion:
                    queue.remove(waiting)
                    completion.complete(CANCELLED)
                    return
        if isinstance(completion, ReceiveCompletion) and completion.cancel is not None and not completion.done:
            completion.cancel()

    def note_collective(self, call: str, communicator: Communicator, arguments: CallArguments) -> None:
        """Note that this rank makes a collective call; a history records it, so that the calls of ranks can be compared."""

    def next_continuation(self) -> int:
        """Return an odd tag for a continuation, unused by this node until the tags wrap around. (Even ones are those of
        collective calls.)"""
        following = self._continuation + 2
        self._continuation = following = following if following <= self.max_tag else 1
        return following

    def waiting(self) -> list[str]:
        """Return a sentence for each transfer that waits for a descriptor."""
        return [
            f"{waiting.completion.what}: no descriptor is free"
            for queue in (self._sends, self._receives)
            for waiting in queue
        ]

    def _contiguous(self, buffer: Data, completion: ReceiveCompletion) -> memoryview:
        """Return contiguous memory for a message that the NIC does not scatter."""
        if isinstance(buffer, IoVec):
            whole = memoryview(bytearray(len(buffer)))
            completion.add_callback(
                partial(_scatter, buffer, whole)
            )  # the first callback: it scatters before others are told
            buffer = whole
        # No message is longer than max_message_size, so no descriptor needs to be.
        return buffer[: self.max_message_size]

    def _leave_to_receives(
        self, context: int, completion: Completion[ProbeResult | None], looked: Completion[ProbeResult | None]
    ) -> None:
        found = looked.result()
        taken = found is not None and any(one.takes(context, found.envelope) for one in self._receives)
        completion.complete(None if taken else found)

    def _begin(
        self,
        queue: deque[_Waiting],
        begin: Callable[[], bool],
        completion: AnyCompletion,
        source: int,
        context: int,
        tag: int,
    ) -> None:
        if queue or not self._begun(begin, completion):
            queue.append(_Waiting(begin, completion, source, context, tag))
            if not self._under_way:
                self._pump()

    def _begun(self, begin: Callable[[], bool], completion: AnyCompletion) -> bool:
        self._under_way += 1
        if begin():
            completion.add_callback(self._ended)
            return True
        self._under_way -= 1
        return False

    def _ended(self, _: object) -> None:
        self._under_way -= 1
        if self._sends or self._receives:
            self._pump()

    def _pump(self) -> None:
        """Begin what can be begun. A transfer that completes at once calls this again, recursively: then the running
        loop continues, so that a chain of such transfers does not grow the stack."""
        if self._pumping:
            return
        self._pumping = True
        try:
            again = True
            while again:
                again = False
                for queue in (self._sends, self._receives):
                    while queue and self._begun(queue[0].begin, queue[0].completion):
                        queue.popleft()
                        again = True
                    if queue and not self._under_way:
                        completion = queue.popleft().completion
                        completion.fail(
                            MPIError(ERR_NO_MEM, f"{completion.what}: the NIC has not that many descriptors")
                        )
                        again = True
        finally:
            self._pumping = False


class ObjectDevice(Protocol):
    """The part of `Device` that messages of objects use; one that records a history has it, too."""

    @property
    def max_message_size(self) -> int: ...

    @property
    def lost_sends(self) -> LostSends: ...

    @property
    def next_continuation(self) -> Callable[[], int]: ...

    def send(self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False) -> SendCompletion: ...

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> ReceiveCompletion: ...

    def receive_claimed(self, found: ProbeResult, context: int, buffer: Data) -> ReceiveCompletion: ...


def send_object(
    device: ObjectDevice, destination: int, contexts: tuple[int, int], tag: int, obj: object, synchronous: bool = False
) -> SendCompletion:
    """Pickle an object and begin to send it, as `send_pickled`. Also raises the exceptions of pickling."""
    return send_pickled(device, destination, contexts, tag, pickled(obj), synchronous)


def pickled(obj: object) -> bytes:
    return pickler.dumps(obj)


def send_pickled(
    device: ObjectDevice, destination: int, contexts: tuple[int, int], tag: int, data: bytes, synchronous: bool = False
) -> SendCompletion:
    """Begin to send an object. contexts: the communicator's, and its continuations'. synchronous: it does not complete
    before it is matched. Raises MPIError (ERR_COUNT) if it is too large."""
    size = len(data)
    if size <= FIRST:
        return device.send(destination, contexts[0], tag, memoryview(data), synchronous)
    if size - _ROOM > device.max_message_size:
        raise MPIError(ERR_COUNT, f"a pickled object of {size} bytes: at most {device.max_message_size + _ROOM}")
    view = memoryview(data)
    continuation = device.next_continuation()
    what = "a send of an object to rank %s, tag %s, %s bytes"
    whole = SendCompletion(what, destination, tag, size, contexts[0], device.lost_sends)
    head = memoryview(_HEAD.pack(_MAGIC, continuation, size) + view[:_ROOM])
    send_rest = partial(_send_rest, device, destination, contexts[1], continuation, view[_ROOM:], whole)
    first = device.send(destination, contexts[0], tag, head, synchronous)
    first.whole = whole
    first.add_callback(send_rest)
    return whole


def _send_rest(
    device: ObjectDevice,
    destination: int,
    context: int,
    continuation: int,
    rest: memoryview,
    whole: SendCompletion,
    first: Completion[Envelope],
) -> None:
    try:
        first.result()
    except MPIError as error:
        whole.fail(error)
        return
    if first.result() is CANCELLED:
        whole.complete(CANCELLED)
    else:
        last = device.send(destination, context, continuation, rest)
        last.whole = whole
        last.add_callback(partial(_hand_on, whole))


def _hand_on(whole: SendCompletion, last: Completion[Envelope]) -> None:
    if whole.done:
        return  # its first message is lost
    try:
        whole.complete(last.result())
    except MPIError as error:
        whole.fail(error)


class ObjectReceive:
    """An incoming object. completion: done when it is complete; fails as a receive does, and with ERR_TYPE if the message is
    not an object's. The envelope's length is the pickle's. first: the receive of its first message."""

    __slots__ = ("_contexts", "_data", "_device", "_envelope", "completion", "first")

    def __init__(
        self, device: ObjectDevice, source: int, contexts: tuple[int, int], tag: int, claimed: ProbeResult | None = None
    ) -> None:
        """claimed: the message, if a probe has claimed it."""
        self._device = device
        self._contexts = contexts
        self._data = memoryview(bytearray(FIRST))
        self._envelope: Envelope
        if claimed is None:
            self.first = device.receive(source, contexts[0], tag, self._data)
        else:
            self.first = device.receive_claimed(claimed, contexts[0], self._data)
        self.completion: Completion[Envelope] = Completion("%s", self.first)
        self.first.add_callback(self._first)

    def load(self) -> object:
        """Return the object, once it is complete; None, as in mpi4py, of an empty message. Raises MPIError (ERR_TYPE) if
        it is no pickle, and the exceptions of unpickling."""
        if not self._data:
            return None
        try:
            return pickler.loads(self._data)
        except (pickle.UnpicklingError, EOFError) as error:
            raise _no_object(self._envelope) from error

    def _first(self, first: Completion[Envelope]) -> None:
        try:
            source, tag, length = envelope = first.result()
        except MPIError as error:
            self.completion.fail(_no_object(error.envelope) if error.error_class == ERR_TRUNCATE else error)
            return
        if envelope is CANCELLED:
            self.completion.complete(envelope)
            return
        if length != FIRST or self._data[: len(_MAGIC)] != _MAGIC:
            self._envelope = envelope
            self._data = self._data[:length]
            self.completion.complete(envelope)
            return
        _, continuation, size = _HEAD.unpack_from(self._data)
        self._envelope = Envelope(source, tag, size)
        begin = self._data[_HEAD.size :]
        try:
            self._data = memoryview(bytearray(size))
        except (MemoryError, OverflowError):
            self.completion.fail(MPIError(ERR_NO_MEM, f"no memory for an object of {size} bytes", self._envelope))
            return
        self._data[:_ROOM] = begin
        rest = self._device.receive(source, self._contexts[1], continuation, self._data[_ROOM:])
        rest.add_callback(self._rest)

    def _rest(self, rest: Completion[Envelope]) -> None:
        try:
            rest.result()
        except MPIError as error:
            self.completion.fail(error)
        else:
            self.completion.complete(self._envelope)


def _no_object(envelope: Envelope | None) -> MPIError:
    who = f" from rank {envelope.source}, tag {envelope.tag}," if envelope else ""
    return MPIError(
        ERR_TYPE,
        f"the message{who} is no object: its bytes are no pickle, or more than {FIRST}; Recv receives it",
        envelope,
    )


def nothing() -> SendCompletion:
    """Return a completed transfer with PROC_NULL."""
    done = SendCompletion("a transfer with rank %s, tag %s, %s bytes", PROC_NULL)
    done.complete(PROC_NULL_ENVELOPE)
    return done


def _scatter(iov: IoVec, whole: memoryview, completion: Completion[Envelope]) -> None:
    try:
        length = completion.result().length
    except MPIError as error:
        length = error.envelope.length if error.envelope is not None else 0
    iov.scatter(whole[:length])


def _sought(source: int, tag: int) -> str:
    who = f"rank {source}" if source >= 0 else "any rank"
    return f"{who}, tag {tag}" if tag >= 0 else f"{who}, any tag"


def _sentence(dispatch: SendCompletion) -> str:
    return f"{dispatch.what}, was reported done, and has failed since: {dispatch.failure()}"

"""What MPI asks of a host library, and the queues before it. MPICH, which EMP's own MPI was, calls it a device.

A host library that matches messages (`MatchingEndpoint`) sends and receives messages by rank, context and tag as long as
it has descriptors. `Device` lets a program begin as many as it likes: what finds no descriptor waits for one. Sends wait
behind sends and receives behind receives, so each kind is begun in the program's order, which keeps matching in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol, runtime_checkable

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.errors import CANCELLED, ERR_NO_MEM, NOBODY, Envelope, MPIError
from protocols.mpi.pieces import Data, Pieces, gathered


class Found(NamedTuple):
    """What a probe has found. handle: the endpoint's own, for `receive_claimed`."""

    envelope: Envelope
    handle: object


class Receipt(Completion[Envelope]):
    """A receive under way. take_back: given by the endpoint that has it, by which it may be cancelled: it is then completed
    with CANCELLED, unless it has got its message, and never both."""

    __slots__ = ("_size", "_source", "_tag", "take_back")

    def __init__(self, source: int, tag: int, size: int) -> None:
        """source, tag: or any. size: bytes of its buffer."""
        super().__init__()
        self._source = source
        self._tag = tag
        self._size = size
        self.take_back: Callable[[], object] | None = None

    @property
    def what(self) -> str:
        return f"a receive from {_sought(self._source, self._tag)}, {self._size} bytes"


class MatchingEndpoint(Protocol):
    """A node's side of a NIC that matches. `matching.MatchingByLibrary` has most of it for one that does not.

    A message goes to the oldest receive that was begun for its context, for its source or ANY_SOURCE and for its tag or
    ANY_TAG; a receive takes the oldest such message; two messages of one sender in one context never overtake each
    other in this. Node 0..size - 1 is rank 0..size - 1 of all; a node may send to itself.

    contexts: how many, from 0 on: a receive, also one for any tag, gets messages of its own context only. most_tag: tags
    go from 0 to that. most_bytes: of a message.

    All return False, and have done nothing, while descriptors are short for that transfer; the device tries again when
    another transfer of its own is over. Neither sends nor receives may take all descriptors, or two programs that first
    send, or first receive, a lot could not go on; and together they leave one for probes. Otherwise they complete `over`
    some time, at once too, or fail it with an MPIError:

    - ERR_TRUNCATE: the message was longer than the buffer, which is full; the envelope says what it was. The sender does
      not notice.
    - ERR_PROC_FAILED: the peer has restarted, has given up or does not answer. Whether a message sent has arrived is not
      known; a buffer received into may hold a part.

    They may be called from a completion's callback. Ranks, tags and lengths have been checked.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def contexts(self) -> int: ...

    @property
    def most_tag(self) -> int: ...

    @property
    def most_bytes(self) -> int: ...

    def send(self, destination: int, context: int, tag: int, data: memoryview, over: Completion[Envelope]) -> bool:
        """Done when the buffer may be used again; the envelope's source is then the destination."""
        ...

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, over: Completion[Envelope]
    ) -> bool:
        """As `send`, and not done before the message has its receive."""
        ...

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, over: Receipt) -> bool:
        """Done when a message has been received. source: or ANY_SOURCE. tag: or ANY_TAG."""
        ...

    def receive_claimed(self, found: Found, buffer: memoryview, over: Receipt) -> bool:
        """Receive a message that a probe has claimed."""
        ...

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, over: Completion[Found | None]
    ) -> bool:
        """Done with the oldest message that such a receive would get, which stays where it is; when there is one, or,
        unless wait, soon, with None if there is none. claim: nobody gets it any more but `receive_claimed`."""
        ...


Over = Completion[Envelope] | Completion[Found | None]


@runtime_checkable
class ScatteringEndpoint(MatchingEndpoint, Protocol):
    """One whose NIC gathers what it sends from pieces, and scatters what it receives, where that serves it."""

    def is_moved(self, pieces: Pieces) -> bool:
        """Whether it moves a message that lies so. Others are copied by the device."""
        ...

    def send_pieces(
        self, destination: int, context: int, tag: int, data: Pieces, synchronous: bool, over: Completion[Envelope]
    ) -> bool:
        """As `send`, or `send_synchronously`."""
        ...

    def receive_pieces(self, source: int, context: int, tag: int, buffer: Pieces, over: Receipt) -> bool:
        """As `receive`."""
        ...


class _Waiting(NamedTuple):
    """What waits for a descriptor. source, context, tag: what it receives; context is -1 of what receives nothing."""

    begin: Callable[[], bool]
    over: Over
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
    """A node's endpoint with queues before it; all of the node's communicators share one."""

    __slots__ = (
        "_continuation", "_endpoint", "_pumping", "_receives", "_scattering", "_sends", "_under_way", "contexts",
        "most_bytes", "most_tag", "rank", "size", "taken",
    )  # fmt: skip

    def __init__(self, endpoint: MatchingEndpoint) -> None:
        self._endpoint = endpoint
        self._scattering = endpoint if isinstance(endpoint, ScatteringEndpoint) else None
        self.rank = endpoint.rank
        self.size = endpoint.size
        self.contexts = endpoint.contexts
        self.most_tag = endpoint.most_tag
        self.most_bytes = endpoint.most_bytes
        self.taken: set[int] = set()
        """Numbers of communicators that are in use on this node."""
        self._sends: deque[_Waiting] = deque()  # what waits for a descriptor
        self._receives: deque[_Waiting] = deque()  # probes that wait, too
        self._under_way = 0
        self._pumping = False
        self._continuation = 0

    def send(
        self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False
    ) -> Completion[Envelope]:
        """Begin a send, or let it wait for its turn. synchronous: it is not over before it has its receive."""
        over: Completion[Envelope] = Completion("a send to rank %s, tag %s, %s bytes", destination, tag, len(data))
        begin: Callable[[], bool]
        if isinstance(data, Pieces) and self._scattering is not None and self._scattering.is_moved(data):
            begin = partial(self._scattering.send_pieces, destination, context, tag, data, synchronous, over)
        elif synchronous:
            begin = partial(self._endpoint.send_synchronously, destination, context, tag, gathered(data), over)
        else:
            begin = partial(self._endpoint.send, destination, context, tag, gathered(data), over)
        self._begin(self._sends, begin, over, destination, _NOTHING, tag)
        return over

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> Receipt:
        """Begin a receive, or let it wait for its turn. source: or ANY_SOURCE. tag: or ANY_TAG."""
        over = Receipt(source, tag, len(buffer))
        begin: Callable[[], bool]
        if isinstance(buffer, Pieces) and self._scattering is not None and self._scattering.is_moved(buffer):
            begin = partial(self._scattering.receive_pieces, source, context, tag, buffer, over)
        else:
            begin = partial(self._endpoint.receive, source, context, tag, self._in_one_piece(buffer, over), over)
        self._begin(self._receives, begin, over, source, context, tag)
        return over

    def receive_claimed(self, found: Found, context: int, buffer: Data) -> Receipt:  # noqa: ARG002  histories tell it
        """Receive a message that a probe in that context has claimed, or let it wait for its turn."""
        source, tag, _ = found.envelope
        over = Receipt(source, tag, len(buffer))
        begin = partial(self._endpoint.receive_claimed, found, self._in_one_piece(buffer, over), over)
        self._begin(self._receives, begin, over, source, _NOTHING, tag)
        return over

    def probe(
        self, source: int, context: int, tag: int, wait: bool = True, claim: bool = False
    ) -> Completion[Found | None]:
        """Ask for the message that a receive, begun now, would get; unless wait, None if there is none yet. claim: only
        `receive_claimed` gets it then."""
        over: Completion[Found | None] = Completion(f"a message from {_sought(source, tag)}")
        if wait:
            begin = partial(self._endpoint.probe, source, context, tag, True, claim, over)
            self._begin(self._receives, begin, over, source, _NOTHING, tag)
            return over
        # Receives that wait here were begun before, though the NIC does not know of them.
        if not self._receives:
            if not self._endpoint.probe(source, context, tag, False, claim, over):
                over.complete(None)
        elif claim:
            over.complete(None)
        else:
            looked: Completion[Found | None] = Completion(over.what)
            looked.add_callback(partial(self._leave_to_receives, context, over))
            if not self._endpoint.probe(source, context, tag, False, False, looked):
                looked.complete(None)
        return over

    def cancel(self, over: Completion[Envelope]) -> None:
        """Complete a transfer with CANCELLED, unless it is too late for that: a send once it has been begun, a receive once
        it has its message."""
        for queue in (self._receives, self._sends):
            for waiting in queue:
                if waiting.over is over:
                    queue.remove(waiting)
                    over.complete(CANCELLED)
                    return
        if isinstance(over, Receipt) and over.take_back is not None and not over.done:
            over.take_back()

    def next_continuation(self) -> int:
        """A tag, not 0, for a message that belongs to another one: not used by this node for as long as tags last."""
        self._continuation = self._continuation % self.most_tag + 1
        return self._continuation

    def waiting(self) -> list[str]:
        """A sentence for each transfer that waits for a descriptor."""
        return [
            f"{waiting.over.what}: no descriptor is free"
            for queue in (self._sends, self._receives)
            for waiting in queue
        ]

    def _in_one_piece(self, buffer: Data, over: Receipt) -> memoryview:
        """Where a NIC puts a message that does not scatter it."""
        if isinstance(buffer, Pieces):
            whole = memoryview(bytearray(len(buffer)))
            over.add_callback(
                partial(_scatter, buffer, whole)
            )  # the first callback: it is there before anybody is told
            buffer = whole
        # No message is longer than most_bytes, and no descriptor needs to be.
        return buffer[: self.most_bytes]

    def _leave_to_receives(
        self, context: int, over: Completion[Found | None], looked: Completion[Found | None]
    ) -> None:
        found = looked.result()
        taken = found is not None and any(one.takes(context, found.envelope) for one in self._receives)
        over.complete(None if taken else found)

    def _begin(
        self, queue: deque[_Waiting], begin: Callable[[], bool], over: Over, source: int, context: int, tag: int
    ) -> None:
        if queue or not self._begun(begin, over):
            queue.append(_Waiting(begin, over, source, context, tag))
            if not self._under_way:
                self._pump()

    def _begun(self, begin: Callable[[], bool], over: Over) -> bool:
        self._under_way += 1
        if begin():
            over.add_callback(self._ended)
            return True
        self._under_way -= 1
        return False

    def _ended(self, _: object) -> None:
        self._under_way -= 1
        if self._sends or self._receives:
            self._pump()

    def _pump(self) -> None:
        """Begin what can be begun. A transfer that is over as soon as it is begun calls this again, from within: then the
        loop that runs goes on, and no chain of such transfers grows the stack."""
        if self._pumping:
            return
        self._pumping = True
        try:
            again = True
            while again:
                again = False
                for queue in (self._sends, self._receives):
                    while queue and self._begun(queue[0].begin, queue[0].over):
                        queue.popleft()
                        again = True
                    if queue and not self._under_way:
                        over = queue.popleft().over
                        over.fail(MPIError(ERR_NO_MEM, f"{over.what}: the NIC has not that many descriptors"))
                        again = True
        finally:
            self._pumping = False


def nothing() -> Completion[Envelope]:
    """A transfer with nobody: it is over."""
    done: Completion[Envelope] = Completion("nobody")
    done.complete(NOBODY)
    return done


def _scatter(pieces: Pieces, whole: memoryview, over: Completion[Envelope]) -> None:
    try:
        length = over.result().length
    except MPIError as error:
        length = error.envelope.length if error.envelope is not None else 0
    pieces.scatter(whole[:length])


def _sought(source: int, tag: int) -> str:
    who = f"rank {source}" if source >= 0 else "any rank"
    return f"{who}, tag {tag}" if tag >= 0 else f"{who}, any tag"

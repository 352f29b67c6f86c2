"""Queues of sends and receives in front of a host library. MPICH, from which EMP's own MPI is derived, calls this a
device.

A host library that matches messages (`MatchingEndpoint`) sends and receives messages by rank, context and tag as long
as it has descriptors. `Device` lets a program begin any number of transfers: those without a descriptor wait for one.
Sends queue behind sends and receives behind receives, so each kind is begun in the program's order, which keeps
matching in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.endpoints import MatchingEndpoint, ScatteringEndpoint
from protocols.mpi.mpi_errors import CANCELLED, ERR_NO_MEM, Envelope, MPIError
from protocols.mpi.mpi_transfers import Dispatch, Found, Losses, Receipt, sought
from protocols.mpi.pieces import Data, Pieces

Over = Completion[Envelope] | Completion[Found | None]


class _Waiting(NamedTuple):
    """A transfer that waits for a descriptor. source, context, tag: what it receives; context is -1 if it receives
    nothing."""

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
    """A node's endpoint with queues in front; all of the node's communicators share one."""

    __slots__ = (
        "_continuation", "_endpoint", "_pumping", "_receives", "_scattering", "_sends", "_under_way", "contexts",
        "losses", "max_message_size", "max_tag", "rank", "size", "taken",
    )  # fmt: skip

    def __init__(self, endpoint: MatchingEndpoint) -> None:
        self._endpoint = endpoint
        self._scattering = endpoint if isinstance(endpoint, ScatteringEndpoint) else None
        self.rank = endpoint.rank
        self.size = endpoint.size
        self.contexts = endpoint.contexts
        self.max_tag = endpoint.max_tag
        self.max_message_size = endpoint.max_message_size
        self.taken: set[int] = set()
        """Numbers of communicators in use on this node."""
        self.losses: Final = Losses()
        self._sends: deque[_Waiting] = deque()  # waiting for descriptors
        self._receives: deque[_Waiting] = deque()  # including waiting probes
        self._under_way = 0
        self._pumping = False
        self._continuation = 0

    def send(self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False) -> Dispatch:
        """Begin a send, or queue it. synchronous: it does not complete before it is matched."""
        over = Dispatch(destination=destination, tag=tag, size=len(data), context=context, losses=self.losses)
        begin: Callable[[], bool]
        if isinstance(data, Pieces) and self._scattering is not None and self._scattering.is_moved(data):
            begin = partial(self._scattering.send_pieces, destination, context, tag, data, synchronous, over)
        else:
            whole = data.gathered() if isinstance(data, Pieces) else data
            send = self._endpoint.send_synchronously if synchronous else self._endpoint.send
            begin = partial(send, destination, context, tag, whole, over)
        self._begin(self._sends, begin, over, destination, _NOTHING, tag)
        return over

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> Receipt:
        """Begin a receive, or queue it. source: a rank, or ANY_SOURCE. tag: a tag, or ANY_TAG."""
        over = Receipt(source, tag, len(buffer))
        begin: Callable[[], bool]
        if isinstance(buffer, Pieces) and self._scattering is not None and self._scattering.is_moved(buffer):
            begin = partial(self._scattering.receive_pieces, source, context, tag, buffer, over)
        else:
            begin = partial(self._endpoint.receive, source, context, tag, self._in_one_piece(buffer, over), over)
        self._begin(self._receives, begin, over, source, context, tag)
        return over

    def receive_claimed(self, found: Found, context: int, buffer: Data) -> Receipt:  # noqa: ARG002  histories tell it
        """Receive a message that a probe in that context has claimed, or queue this."""
        source, tag, _ = found.envelope
        over = Receipt(source, tag, len(buffer))
        begin = partial(self._endpoint.receive_claimed, found, self._in_one_piece(buffer, over), over)
        self._begin(self._receives, begin, over, source, _NOTHING, tag)
        return over

    def probe(
        self, source: int, context: int, tag: int, wait: bool = True, claim: bool = False
    ) -> Completion[Found | None]:
        """Find the message that a receive, begun now, would get; without wait, None if there is none yet. claim: only
        `receive_claimed` can receive it then."""
        over: Completion[Found | None] = Completion(f"a message from {sought(source, tag)}")
        if wait:
            begin = partial(self._endpoint.probe, source, context, tag, True, claim, over)
            self._begin(self._receives, begin, over, source, _NOTHING, tag)
            return over
        # Receives queued here were begun earlier, though the NIC does not know of them.
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
        """Complete a transfer with CANCELLED, if possible: a send until it has been begun, a receive until it is
        matched."""
        for queue in (self._receives, self._sends):
            for waiting in queue:
                if waiting.over is over:
                    queue.remove(waiting)
                    over.complete(CANCELLED)
                    return
        if isinstance(over, Receipt) and over.take_back is not None and not over.done:
            over.take_back()

    def next_continuation(self) -> int:
        """Return a tag other than 0 for a continuation, unused by this node until the tags wrap around."""
        self._continuation = self._continuation % self.max_tag + 1
        return self._continuation

    def waiting(self) -> list[str]:
        """Return a sentence for each transfer that waits for a descriptor."""
        return [
            f"{waiting.over.what}: no descriptor is free"
            for queue in (self._sends, self._receives)
            for waiting in queue
        ]

    def _in_one_piece(self, buffer: Data, over: Receipt) -> memoryview:
        """Return contiguous memory for a message that the NIC does not scatter."""
        if isinstance(buffer, Pieces):
            whole = memoryview(bytearray(len(buffer)))
            over.add_callback(
                partial(_scatter, buffer, whole)
            )  # the first callback: it scatters before others are told
            buffer = whole
        # No message is longer than max_message_size, so no descriptor needs to be.
        return buffer[: self.max_message_size]

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
                    while queue and self._begun(queue[0].begin, queue[0].over):
                        queue.popleft()
                        again = True
                    if queue and not self._under_way:
                        over = queue.popleft().over
                        over.fail(MPIError(ERR_NO_MEM, f"{over.what}: the NIC has not that many descriptors"))
                        again = True
        finally:
            self._pumping = False


def _scatter(pieces: Pieces, whole: memoryview, over: Completion[Envelope]) -> None:
    try:
        length = over.result().length
    except MPIError as error:
        length = error.envelope.length if error.envelope is not None else 0
    pieces.scatter(whole[:length])

"""Transfers in progress: receives and sends, and sends that failed after their program had continued.

A send tracks its message after the program has continued (`Dispatch`). MPI 4.1, section 3.4: a standard send may
complete before its message has been received. Section 9.3: a later failure is reported by a later call related to the
same operation, if there is one. So a request that has not been waited for reports it. If no such call is left, the next
call that involves the same rank, in the message's communicator, reports it with class ERR_PROC_FAILED, which is about a
rank (ULFM). Failures that no call has reported are reported when the program ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE, PROC_NULL
from protocols.mpi.mpi_errors import NOBODY, Envelope, MPIError


class Found(NamedTuple):
    """Result of a probe. handle: the endpoint's own, for `receive_claimed`."""

    envelope: Envelope
    handle: object


class Receipt(Completion[Envelope]):
    """A receive in progress. take_back: set by the endpoint that has it, to cancel it: it then completes with
    CANCELLED, unless it has matched a message."""

    __slots__ = ("_size", "_source", "_tag", "take_back")

    def __init__(self, source: int, tag: int, size: int) -> None:
        """source, tag: may be wildcards. size: bytes of its buffer."""
        super().__init__()
        self._source = source
        self._tag = tag
        self._size = size
        self.take_back: Callable[[], object] | None = None

    @property
    def what(self) -> str:
        return f"a receive from {sought(self._source, self._tag)}, {self._size} bytes"


class Observer(Enum):
    """The party to which a send itself reports its failure."""

    CALLER = "the call that sends, until it returns"
    REQUEST = "the request, until it has been waited for"
    NOBODY = "nobody: the program has gone on"


class Dispatch(Completion[Envelope]):
    """A send in progress.

    A protocol that acknowledges reception completes it. One that buffers calls `release` when the program may reuse its
    buffer, and later `deliver` or `lose`, unless the run ends before the outcome is known.

    destination: the device's rank. context: the message's. is_open: it is complete, and its message's arrival is not
    known yet. on_outcome: called once, when that is known: `result` then raises the error if it has not arrived. whole:
    the send of which this is a part, and which fails with it.
    """

    __slots__ = ("_losses", "_observer", "context", "destination", "is_open", "on_outcome", "whole")

    def __init__(
        self,
        what: str = "a send to rank %s, tag %s, %s bytes",
        destination: int = ANY_SOURCE,
        tag: int = 0,
        size: int = 0,
        context: int = -1,
        losses: Losses | None = None,
    ) -> None:
        """what: %-format for destination, tag and size (bytes). losses: None if its failure need not be reported."""
        super().__init__(what, destination, tag, size)
        self.destination: Final = destination
        self.context: Final = context
        self.is_open = False
        self.on_outcome: Callable[[Dispatch], object] | None = None
        self.whole: Dispatch | None = None
        self._observer = Observer.CALLER
        self._losses = losses

    @property
    def has_request(self) -> bool:
        """Whether a request will report its outcome."""
        return self._observer is Observer.REQUEST

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

    def fail(self, error: Exception) -> None:
        super().fail(error)
        if self._observer is not Observer.CALLER:
            self._report(error)

    def leave_to(self, observer: Observer) -> None:
        """Set who reports a failure, when the call that has begun the send returns."""
        self._observer = observer
        if self._error is not None:
            self._report(self._error)

    def taken(self) -> None:
        """Record that its request has been waited for, and has reported its outcome so far."""
        self._observer = Observer.NOBODY
        if self._losses is not None and self._losses.known:
            self._losses.discard(self)

    def failure(self) -> MPIError:
        """Return the error of a failed send."""
        assert isinstance(self._error, MPIError)
        return self._error

    def _report(self, error: Exception) -> None:
        whole = self.whole
        if whole is None:
            if self._losses is not None and isinstance(error, MPIError):
                self._losses.add(self)
        elif not whole.done:
            whole.fail(error)
        elif isinstance(error, MPIError):
            whole.lose(error)


class Losses:
    """Failed sends of one node that its program has not been told of, shared by its communicators."""

    __slots__ = ("_tell", "known")

    def __init__(self) -> None:
        self.known: list[Dispatch] = []
        self._tell: Callable[[str], object] | None = None

    def add(self, dispatch: Dispatch) -> None:
        if self._tell is not None:
            self._tell(_sentence(dispatch))
        elif dispatch not in self.known:
            self.known.append(dispatch)

    def discard(self, dispatch: Completion[Envelope]) -> None:
        """Remove a send that its program has been told of."""
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
        """Report losses elsewhere, since the program has ended. tell: is given a sentence for each unreported loss, now
        and later."""
        for dispatch in self.known:
            tell(_sentence(dispatch))
        self.known = []
        self._tell = tell

    def _raise(self, lost: list[Dispatch]) -> None:
        if not lost:
            return
        self.known = [known for known in self.known if known not in lost]
        more = f"; and {len(lost) - 1} more" if len(lost) > 1 else ""
        error = lost[0].failure()
        raise MPIError(error.error_class, _sentence(lost[0]) + more)


def nothing() -> Dispatch:
    """Return a completed transfer with PROC_NULL."""
    done = Dispatch("a transfer with rank %s, tag %s, %s bytes", PROC_NULL)
    done.complete(NOBODY)
    return done


def sought(source: int, tag: int) -> str:
    """Name the sender and tag that a receive takes, wildcards included."""
    who = f"rank {source}" if source >= 0 else "any rank"
    return f"{who}, tag {tag}" if tag >= 0 else f"{who}, any tag"


def _sentence(dispatch: Dispatch) -> str:
    return f"{dispatch.what}, was reported done, and has failed since: {dispatch.failure()}"

"""Work queues and completion queues of VIs, as a program has them (section 2.3 of the specification)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.core.completion import Completion
from protocols.via.vip_descriptors import Segment
from protocols.via.vipl_names import STATUS_ERRORS, Result, ViaError

if TYPE_CHECKING:
    from protocols.via.host import Vi


@dataclass(slots=True, eq=False)
class Descriptor:
    """A descriptor of a program (VIP_DESCRIPTOR).

    control: an operation of `vipl_names.OP_*`, and IMMEDIATE. data: its data segments. remote: the address segment of RDMA.
    immediate: 32 bits, to send or received. length, status: bytes transferred and `vipl_names.Done`, once it is done.
    context: the program's own.
    """

    control: int = 0
    data: Sequence[Segment] = ()
    remote: Segment | None = None
    immediate: int = 0
    context: object = None
    length: int = field(default=0, init=False)
    status: int = field(default=0, init=False)
    is_posted: bool = field(default=False, init=False)

    @property
    def has_failed(self) -> bool:
        """Whether its status has an error's bit."""
        return bool(self.status & STATUS_ERRORS)


class WorkQueue:
    """A VI's send or receive queue. Descriptors leave it in the order in which they were posted."""

    def __init__(self, vi: Vi, cq: CompletionQueue | None) -> None:
        self.vi: Final = vi
        self.cq: Final = cq
        self._posted: deque[Descriptor] = deque()
        self._done: deque[Descriptor] = deque()
        self._waiting: Completion[Descriptor] | None = None
        self._notify: Callable[[Descriptor], object] | None = None

    def __len__(self) -> int:
        """Number of descriptors that the NIC has."""
        return len(self._posted)

    def done(self) -> Descriptor | None:
        """VipSendDone, VipRecvDone: take the oldest descriptor if it is done; None: VIP_NOT_DONE."""
        return self._done.popleft() if self._done else None

    def wait(self) -> Completion[Descriptor]:
        """VipSendWait, VipRecvWait: wait for the oldest descriptor. Raises ViaError if the queue is bound to a completion
        queue: it is waited on only there."""
        if self.cq is not None:
            raise ViaError(Result.INVALID_STATE, "the queue is bound to a completion queue: wait there")
        if self._waiting is not None:
            raise ViaError(Result.INVALID_STATE, "somebody waits for this queue already")
        waiting: Completion[Descriptor] = Completion("a descriptor of VI %s", self.vi.number)
        if self._done:
            waiting.complete(self._done.popleft())
        else:
            self._waiting = waiting
        return waiting

    def notify(self, handler: Callable[[Descriptor], object]) -> None:
        """VipSendNotify, VipRecvNotify: call with every descriptor that is done from now on, in place of `done`."""
        self._notify = handler

    def post(self, descriptor: Descriptor) -> None:
        """Append a descriptor that is passed to the NIC."""
        descriptor.is_posted = True
        descriptor.status = 0
        self._posted.append(descriptor)

    def finish(self, descriptor: Descriptor) -> None:
        """Handle a descriptor's return."""
        descriptor.is_posted = False
        while self._posted and not self._posted[0].is_posted:
            self._finish(self._posted.popleft())

    def _finish(self, descriptor: Descriptor) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.complete(descriptor)
        elif self._notify is not None:
            self._notify(descriptor)
        else:
            self._done.append(descriptor)
            if self.cq is not None:
                self.cq.add(CompletionEntry(self.vi, self is self.vi.receive_queue))


class CompletionEntry(NamedTuple):
    """A completion: `done` of this queue has its descriptor."""

    vi: Vi
    is_receive: bool

    @property
    def queue(self) -> WorkQueue:
        return self.vi.receive_queue if self.is_receive else self.vi.send_queue


class CompletionQueue:
    """A completion queue of any number of work queues. entries: completions that it holds."""

    def __init__(self, entries: int, on_overrun: Callable[[Vi], object]) -> None:
        """on_overrun: called with the VI whose completion was lost for want of an entry. Raises ViaError."""
        self.entries = _at_least(entries, 1)
        self._on_overrun = on_overrun
        self._queue: deque[CompletionEntry] = deque()
        self._waiting: Completion[CompletionEntry] | None = None
        self._notify: Callable[[], object] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def resize(self, entries: int) -> None:
        """VipResizeCQ. Raises ViaError below the number of completions that it holds."""
        self.entries = _at_least(entries, max(1, len(self._queue)))

    def done(self) -> CompletionEntry | None:
        """VipCQDone: take the oldest completion; None: VIP_NOT_DONE."""
        return self._queue.popleft() if self._queue else None

    def wait(self) -> Completion[CompletionEntry]:
        """VipCQWait: wait for a completion."""
        if self._waiting is not None:
            raise ViaError(Result.INVALID_STATE, "somebody waits for this completion queue already")
        waiting: Completion[CompletionEntry] = Completion("a completion")
        if self._queue:
            waiting.complete(self._queue.popleft())
        else:
            self._waiting = waiting
        return waiting

    def notify(self, handler: Callable[[], object]) -> None:
        """VipCQNotify: call whenever a completion was added."""
        self._notify = handler

    def add(self, entry: CompletionEntry) -> None:
        """Add a completion."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.complete(entry)
        elif len(self._queue) >= self.entries:
            self._on_overrun(entry.vi)
        else:
            self._queue.append(entry)
            if self._notify is not None:
                self._notify()


def _at_least(entries: int, least: int) -> int:
    if entries < least:
        raise ViaError(Result.INVALID_PARAMETER, f"a completion queue must have {least} or more entries, got {entries}")
    return entries

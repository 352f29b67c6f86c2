"""Work queues and completion queues of VIs, as a program has them (section 2.3 of the specification)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from protocols.core.completion import Completion
from protocols.via.vip_descriptors import Segment
from protocols.via.vipl_names import STATUS_ERRORS, Result, ViaError

if TYPE_CHECKING:
    from protocols.via.virtual_interface import Vi

Alarm = Callable[[int, Callable[[], object]], Callable[[], object]]
"""Sets an alarm: nanoseconds, what it calls; returns what takes it back."""
Value = TypeVar("Value")


@dataclass(slots=True, eq=False)
class Descriptor:
    """A descriptor of a program (VIP_DESCRIPTOR).

    control: an operation of `vipl_names.OP_*`, and IMMEDIATE, QFENCE. data: its data segments. remote: the address segment
    of RDMA. immediate: 32 bits, to send or received. length, status: bytes transferred and `vipl_names.Done`, once it is
    done. context: the program's own.
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

    def __init__(self, vi: Vi, cq: CompletionQueue | None, alarm: Alarm) -> None:
        self.vi: Final = vi
        self.cq: Final = cq
        self._alarm = alarm
        if cq is not None:
            cq.bind(self)
        self._posted: deque[Descriptor] = deque()
        self._done: deque[Descriptor] = deque()
        self._waiting: Completion[Descriptor] | None = None
        self._handlers: deque[Callable[[Descriptor], object]] = deque()

    def __len__(self) -> int:
        """Number of descriptors that the NIC has."""
        return len(self._posted)

    @property
    def is_empty(self) -> bool:
        """Whether it has no descriptor, done or not."""
        return not self._posted and not self._done

    def done(self) -> Descriptor | None:
        """VipSendDone, VipRecvDone: take the oldest descriptor if it is done; None: VIP_NOT_DONE."""
        return self._done.popleft() if self._done else None

    def wait(self, timeout: int = 0) -> Completion[Descriptor]:
        """VipSendWait, VipRecvWait: wait for the oldest descriptor. timeout: nanoseconds, after which it fails with
        VIP_TIMEOUT; 0: none. Raises ViaError if the queue is bound to a completion queue: it is waited on only there."""
        self._check_unbound()
        if self._waiting is not None:
            raise ViaError(Result.INVALID_STATE, "somebody waits for this queue already")
        waiting: Completion[Descriptor] = Completion("a descriptor of VI %s", self.vi.number)
        if self._done:
            waiting.complete(self._done.popleft())
        else:
            self._waiting = waiting
            _limit(waiting, self._alarm, timeout, self._expire)
        return waiting

    def notify(self, handler: Callable[[Descriptor], object]) -> None:
        """VipSendNotify, VipRecvNotify: take the oldest descriptor when it is done, and call with it. A handler is called
        once; several are called in turn. Raises ViaError as `wait`."""
        self._check_unbound()
        if self._done:
            handler(self._done.popleft())
        else:
            self._handlers.append(handler)

    def cancel(self) -> None:
        """Forget the handlers, since the VI is destroyed."""
        self._handlers.clear()
        if self.cq is not None:
            self.cq.unbind(self)

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
        elif self._handlers:
            self._handlers.popleft()(descriptor)
        else:
            self._done.append(descriptor)
            if self.cq is not None:
                self.cq.add(CompletionEntry(self.vi, self is self.vi.receive_queue))

    def _check_unbound(self) -> None:
        if self.cq is not None:
            raise ViaError(Result.INVALID_STATE, "the queue is bound to a completion queue: wait there")

    def _expire(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.fail(ViaError(Result.TIMEOUT, "no descriptor is done"))


class CompletionEntry(NamedTuple):
    """A completion: `done` of this queue has its descriptor."""

    vi: Vi
    is_receive: bool

    @property
    def queue(self) -> WorkQueue:
        return self.vi.receive_queue if self.is_receive else self.vi.send_queue


class CompletionQueue:
    """A completion queue of any number of work queues. entries: completions that it holds."""

    def __init__(self, entries: int, on_overrun: Callable[[Vi, CompletionQueue], object], alarm: Alarm) -> None:
        """on_overrun: called with the VI whose completion was lost for want of an entry. Raises ViaError."""
        self.entries = _at_least(entries, 1)
        self._alarm = alarm
        self._bound: set[WorkQueue] = set()
        self._is_destroyed = False
        self._on_overrun = on_overrun
        self._queue: deque[CompletionEntry] = deque()
        self._waiting: Completion[CompletionEntry] | None = None
        self._handlers: deque[Callable[[CompletionEntry], object]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def bind(self, queue: WorkQueue) -> None:
        """Bind a new VI's queue. Raises ViaError after `destroy`."""
        if self._is_destroyed:
            raise ViaError(Result.INVALID_PARAMETER, "the completion queue is destroyed")
        self._bound.add(queue)

    def unbind(self, queue: WorkQueue) -> None:
        """Forget the queue of a destroyed VI."""
        self._bound.discard(queue)

    def destroy(self) -> None:
        """VipDestroyCQ. Raises ViaError while a VI is bound to it."""
        if self._bound:
            raise ViaError(Result.ERROR_RESOURCE, f"{len(self._bound)} queues are bound to the completion queue")
        self._is_destroyed = True
        self._handlers.clear()

    def resize(self, entries: int) -> None:
        """VipResizeCQ. Raises ViaError below the number of completions that it holds."""
        self.entries = _at_least(entries, max(1, len(self._queue)))

    def done(self) -> CompletionEntry | None:
        """VipCQDone: take the oldest completion; None: VIP_NOT_DONE."""
        return self._queue.popleft() if self._queue else None

    def wait(self, timeout: int = 0) -> Completion[CompletionEntry]:
        """VipCQWait: wait for a completion. timeout: nanoseconds, after which it fails with VIP_TIMEOUT; 0: none."""
        if self._waiting is not None:
            raise ViaError(Result.INVALID_STATE, "somebody waits for this completion queue already")
        waiting: Completion[CompletionEntry] = Completion("a completion")
        if self._queue:
            waiting.complete(self._queue.popleft())
        else:
            self._waiting = waiting
            _limit(waiting, self._alarm, timeout, self._expire)
        return waiting

    def notify(self, handler: Callable[[CompletionEntry], object]) -> None:
        """VipCQNotify: take the oldest completion when there is one, and call with it. A handler is called once; several
        are called in turn."""
        if self._queue:
            handler(self._queue.popleft())
        else:
            self._handlers.append(handler)

    def add(self, entry: CompletionEntry) -> None:
        """Add a completion."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.complete(entry)
        elif self._handlers:
            self._handlers.popleft()(entry)
        elif len(self._queue) >= self.entries:
            self._on_overrun(entry.vi, self)
        else:
            self._queue.append(entry)

    def _expire(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.fail(ViaError(Result.TIMEOUT, "there is no completion"))


def _limit(waiting: Completion[Value], alarm: Alarm, timeout: int, expire: Callable[[], object]) -> None:
    """Let a wait end after `timeout` ns, if that is not 0."""
    if timeout:
        waiting.add_callback(partial(_take_back, alarm(timeout, partial(_unless_done, waiting, expire))))


def _unless_done(waiting: Completion[Value], expire: Callable[[], object]) -> None:
    if not waiting.done:
        expire()


def _take_back(cancel: Callable[[], object], _: object) -> None:
    cancel()


def _at_least(entries: int, least: int) -> int:
    if entries < least:
        raise ViaError(Result.INVALID_PARAMETER, f"a completion queue must have {least} or more entries, got {entries}")
    return entries

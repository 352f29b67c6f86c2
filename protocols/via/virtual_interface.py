"""A virtual interface as a program has it: descriptors, work queues and completion queues, and calls that connect it
(sections 2.3 and 2.4 of the specification)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from protocols.core.completion import Completion
from protocols.via.attributes import ConnectionRequest, ViAttributes, ViQuery
from protocols.via.kernel_agent import pack_attributes
from protocols.via.vip_descriptors import MAX_DISCRIMINATOR, Command, Op, Queue, Segment
from protocols.via.vipl_names import STATUS_ERRORS, AsyncError, Resource, Result, ViaError, ViState

if TYPE_CHECKING:
    from protocols.via.host import ViaNic

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
    context: object | None = None
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

    vi: "Vi"  # noqa: UP037  mypyc looks for the class before it is there
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


class Vi:
    """A virtual interface of a program. send_queue, receive_queue: its work queues. attributes: its own, and those of the
    VI that it is connected to, since a provider connects equal ones only. joined: number of the peer's request by which
    it was connected, if that came first, otherwise 0."""

    def __init__(
        self,
        nic: ViaNic,
        number: int,
        attributes: ViAttributes,
        send_cq: CompletionQueue | None,
        receive_cq: CompletionQueue | None,
    ) -> None:
        self.number: Final = number
        self.state = ViState.IDLE
        self.attributes = attributes
        self.joined = 0
        self.send_queue: Final = WorkQueue(self, send_cq, nic.alarm)
        self.receive_queue: Final = WorkQueue(self, receive_cq, nic.alarm)
        self._nic = nic
        self._peer_request: Completion[Command] | None = None

    def post_send(self, descriptor: Descriptor) -> None:
        """VipPostSend: pass a descriptor to the NIC. Raises ViaError."""
        self._nic.post(self, Queue.SEND, descriptor)

    def post_receive(self, descriptor: Descriptor) -> None:
        """VipPostRecv; as `post_send`. Receives may be posted before the VI is connected."""
        self._nic.post(self, Queue.RECEIVE, descriptor)

    async def connect_request(self, node: int, discriminator: bytes, timeout: int = 0) -> ViAttributes:
        """VipConnectRequest: connect to a server that waits at a node; return the attributes of its VI. timeout:
        nanoseconds; 0: none. Raises ViaError."""
        await self._begin(Op.CONNECT, node, discriminator, timeout)
        return self.attributes

    def connect_peer_request(self, node: int, discriminator: bytes, timeout: int = 0) -> None:
        """VipConnectPeerRequest: begin to connect to a VI that does the same at a node. Arguments as of
        `connect_request`."""
        self._peer_request = self._begin(Op.CONNECT_PEER, node, discriminator, timeout)

    def connect_peer_done(self) -> ViAttributes | None:
        """VipConnectPeerDone: return the attributes of the peer's VI if the request is answered; None: VIP_NOT_DONE.
        Raises ViaError."""
        request = self._request()
        if not request.done:
            return None
        request.result()
        return self.attributes

    async def connect_peer_wait(self) -> ViAttributes:
        """VipConnectPeerWait: wait until the request is answered. Raises ViaError."""
        await self._request()
        return self.attributes

    async def connect_peer(self, node: int, discriminator: bytes, timeout: int = 0) -> ViAttributes:
        """VipConnectPeerRequest and VipConnectPeerWait."""
        self.connect_peer_request(node, discriminator, timeout)
        return await self.connect_peer_wait()

    async def accept(self, request: ConnectionRequest) -> None:
        """VipConnectAccept: connect to the VI that has sent a request. Raises ViaError."""
        answer = self._nic.command(Command(Op.ACCEPT, vi=self.number, value=request.number))
        answer.add_callback(self._answered)  # at once: an error that ends the connection may be next
        await answer

    async def disconnect(self) -> None:
        """VipDisconnect: end the connection; posted descriptors are returned with DESC_FLUSHED_ERROR."""
        await self._nic.command(Command(Op.DISCONNECT, vi=self.number))
        self.state = ViState.IDLE

    async def query(self) -> ViQuery:
        """VipQueryVi: ask the kernel agent for its state. Raises ViaError."""
        found = await self._nic.command(Command(Op.QUERY_VI, vi=self.number))
        empty = self.send_queue.is_empty, self.receive_queue.is_empty
        return ViQuery(ViState(found.value), self.attributes, *empty)

    async def set_attributes(self, attributes: ViAttributes) -> None:
        """VipSetViAttributes. Raises ViaError unless the VI is idle."""
        level, size, ptag, rdma_write, rdma_read = attributes
        value = pack_attributes(level, rdma_write, rdma_read)
        await self._nic.command(Command(Op.SET_VI, self.number, ptag=ptag, size=size, value=value))
        self.attributes = attributes

    async def destroy(self) -> None:
        """VipDestroyVi. Raises ViaError unless it is idle, and its queues are empty."""
        await self._nic.command(Command(Op.DESTROY_VI, vi=self.number))
        self._nic.forget(self)

    def _begin(self, op: Op, node: int, discriminator: bytes, timeout: int) -> Completion[Command]:
        command = Command(op, vi=self.number, number=node, address=timeout, name=checked(discriminator))
        if self.state is ViState.IDLE:
            self.state = ViState.CONNECT_PENDING
        answer = self._nic.command(command, f"a connection to node {node}")
        answer.add_callback(self._answered)
        return answer

    def _answered(self, answer: Completion[Command]) -> None:
        try:
            self.joined = answer.result().value
        except ViaError:
            if self.state is ViState.CONNECT_PENDING:
                self.state = ViState.IDLE
        else:
            self.state = ViState.CONNECTED

    def _request(self) -> Completion[Command]:
        if self._peer_request is None:
            raise ViaError(Result.INVALID_STATE, f"VI {self.number} has not asked for a peer")
        return self._peer_request


class ErrorReport(NamedTuple):
    """An asynchronous error (VIP_ERROR_DESCRIPTOR). resource: what it is about. vi, cq: which one, if any."""

    error: AsyncError
    resource: Resource
    vi: Vi | None = None
    cq: CompletionQueue | None = None


def checked(discriminator: bytes) -> bytes:
    """Return a discriminator. Raises ViaError if it is too long."""
    if len(discriminator) > MAX_DISCRIMINATOR:
        size = len(discriminator)
        raise ViaError(Result.INVALID_PARAMETER, f"a discriminator has at most {MAX_DISCRIMINATOR} bytes, got {size}")
    return discriminator


def _limit(waiting: Completion[Value], alarm: Alarm, timeout: int, expire: Callable[[], object]) -> None:
    """Let a wait end after `timeout` ns, if that is not 0."""
    if timeout:
        waiting.add_callback(partial(_cancel_alarm, alarm(timeout, partial(_unless_done, waiting, expire))))


def _unless_done(waiting: Completion[Value], expire: Callable[[], object]) -> None:
    if not waiting.done:
        expire()


def _cancel_alarm(cancel: Callable[[], object], _: object) -> None:
    cancel()


def _at_least(entries: int, least: int) -> int:
    if entries < least:
        raise ViaError(Result.INVALID_PARAMETER, f"a completion queue must have {least} or more entries, got {entries}")
    return entries

"""The program's side of a virtual interface: descriptors, work queues, completion queues, and connection calls
(sections 2.3 and 2.4 of the specification)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
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
"""Set an alarm: takes nanoseconds and a callback, returns a function that cancels the alarm."""
Value = TypeVar("Value")


class Descriptor:
    """A descriptor of a program (VIP_DESCRIPTOR).

    control: an operation of `vipl_names.OP_*`, and IMMEDIATE, QFENCE. data: its data segments. remote: the address
    segment of RDMA. immediate: 32 bits, sent or received. length, status: bytes transferred and `vipl_names.Done`, of a
    completed descriptor. context: for the program's use.
    """

    __slots__ = ("context", "control", "data", "immediate", "is_posted", "length", "remote", "status")

    def __init__(
        self,
        control: int = 0,
        data: Sequence[Segment] = (),
        remote: Segment | None = None,
        immediate: int = 0,
        context: object | None = None,
    ) -> None:
        self.control = control
        self.data = data
        self.remote = remote
        self.immediate = immediate
        self.context = context
        self.length = 0
        self.status = 0
        self.is_posted = False

    @property
    def has_failed(self) -> bool:
        """Whether the status has an error bit."""
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
        """Number of posted descriptors."""
        return len(self._posted)

    @property
    def is_empty(self) -> bool:
        """Whether the queue has no descriptors, neither posted nor completed."""
        return not self._posted and not self._done

    def done(self) -> Descriptor | None:
        """VipSendDone, VipRecvDone: dequeue the oldest descriptor if it is done; None: VIP_NOT_DONE."""
        return self._done.popleft() if self._done else None

    def wait(self, timeout: int = 0) -> Completion[Descriptor]:
        """VipSendWait, VipRecvWait: wait for the oldest descriptor. timeout: nanoseconds after which the wait fails with
        VIP_TIMEOUT; 0: none. Raises ViaError if the queue is bound to a completion queue, on which to wait instead, or
        another call waits already."""
        self._check_unbound()
        if self._waiting is not None:
            raise ViaError(Result.INVALID_STATE, "another call waits for this queue already")
        waiting: Completion[Descriptor] = Completion("a descriptor of VI %s", self.vi.number)
        if self._done:
            waiting.complete(self._done.popleft())
        else:
            _limit(waiting, self._alarm, timeout, self._expire)  # before `_waiting` is set, since it may raise
            self._waiting = waiting
        return waiting

    def notify(self, handler: Callable[[Descriptor], object]) -> None:
        """VipSendNotify, VipRecvNotify: dequeue the oldest descriptor when it is done, and pass it to the handler. Each
        call is for one descriptor; several handlers are served in order. Raises ViaError as `wait`."""
        self._check_unbound()
        if self._done:
            handler(self._done.popleft())
        else:
            self._handlers.append(handler)

    def cancel(self) -> None:
        """Remove the handlers of a destroyed VI."""
        self._handlers.clear()
        if self.cq is not None:
            self.cq.unbind(self)

    def post(self, descriptor: Descriptor) -> None:
        """Append a descriptor that was passed to the NIC."""
        descriptor.is_posted = True
        descriptor.status = 0
        self._posted.append(descriptor)

    def finish(self, descriptor: Descriptor) -> None:
        """Handle the completion of a descriptor."""
        descriptor.is_posted = False
        posted = self._posted
        while posted and not posted[0].is_posted:
            self._deliver(posted.popleft())

    def _deliver(self, descriptor: Descriptor) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.complete(descriptor)
        elif self._handlers:
            self._handlers.popleft()(descriptor)
        else:
            self._done.append(descriptor)
            if self.cq is not None:
                self.cq.add(self)

    def _check_unbound(self) -> None:
        if self.cq is not None:
            raise ViaError(Result.INVALID_STATE, "the queue is bound to a completion queue; wait on that queue")

    def _expire(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.fail(ViaError(Result.TIMEOUT, "no descriptor is done"))


class CompletionQueue:
    """A completion queue of any number of work queues. Its entries are the work queues of completed descriptors, which
    `WorkQueue.done` returns. nic: the NIC that the queue belongs to. entries: capacity in completions."""

    def __init__(
        self, nic: object, entries: int, on_overrun: Callable[[Vi, CompletionQueue], object], alarm: Alarm
    ) -> None:
        """on_overrun: called with the VI whose completion was lost because the queue was full. Raises ViaError."""
        self.nic: Final = nic
        self.entries = _check_entries(entries, 1)
        self._alarm = alarm
        self._bound: set[WorkQueue] = set()
        self._is_destroyed = False
        self._on_overrun = on_overrun
        self._queue: deque[WorkQueue] = deque()
        self._waiting: Completion[WorkQueue] | None = None
        self._handlers: deque[Callable[[WorkQueue], object]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def bind(self, queue: WorkQueue) -> None:
        """Bind a new VI's queue. Raises ViaError after `destroy`."""
        self._check_not_destroyed()
        self._bound.add(queue)

    def unbind(self, queue: WorkQueue) -> None:
        """Unbind a queue of a destroyed VI."""
        self._bound.discard(queue)

    def destroy(self) -> None:
        """VipDestroyCQ: destroy the completion queue; later calls fail. Raises ViaError while a work queue is bound to it,
        or a call waits for it."""
        self._check_not_destroyed()
        if self._bound:
            raise ViaError(Result.ERROR_RESOURCE, f"{len(self._bound)} queues are bound to the completion queue")
        if self._waiting is not None:
            raise ViaError(Result.ERROR_RESOURCE, "a call waits for the completion queue")
        self._is_destroyed = True
        self._handlers.clear()

    def resize(self, entries: int) -> None:
        """VipResizeCQ: change the capacity. Raises ViaError if it is below the number of queued completions."""
        self._check_not_destroyed()
        self.entries = _check_entries(entries, max(1, len(self._queue)))

    def done(self) -> WorkQueue | None:
        """VipCQDone: dequeue the oldest completion; None: VIP_NOT_DONE."""
        return self._queue.popleft() if self._queue else None

    def wait(self, timeout: int = 0) -> Completion[WorkQueue]:
        """VipCQWait: wait for a completion. timeout: nanoseconds after which the wait fails with VIP_TIMEOUT; 0: none.
        Raises ViaError if another call waits already."""
        self._check_not_destroyed()
        if self._waiting is not None:
            raise ViaError(Result.INVALID_STATE, "another call waits for this completion queue already")
        waiting: Completion[WorkQueue] = Completion("a completion")
        if self._queue:
            waiting.complete(self._queue.popleft())
        else:
            _limit(waiting, self._alarm, timeout, self._expire)  # before `_waiting` is set, since it may raise
            self._waiting = waiting
        return waiting

    def notify(self, handler: Callable[[WorkQueue], object]) -> None:
        """VipCQNotify: dequeue the next completion, and pass it to the handler. Each call is for one completion;
        several handlers are served in order."""
        self._check_not_destroyed()
        if self._queue:
            handler(self._queue.popleft())
        else:
            self._handlers.append(handler)

    def add(self, queue: WorkQueue) -> None:
        """Add a completion of a work queue."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.complete(queue)
        elif self._handlers:
            self._handlers.popleft()(queue)
        elif len(self._queue) >= self.entries:
            self._on_overrun(queue.vi, self)
        else:
            self._queue.append(queue)

    def _expire(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.fail(ViaError(Result.TIMEOUT, "the completion queue is empty"))

    def _check_not_destroyed(self) -> None:
        if self._is_destroyed:
            raise ViaError(Result.INVALID_PARAMETER, "the completion queue is destroyed")


class Vi:
    """A virtual interface of a program. send_queue, receive_queue: its work queues. attributes: also those of the
    connected VI, since a provider connects VIs with equal attributes only. request_number: number of the connection request
    of the connected VI, as `ViaNic.connect_wait` has returned it; 0 if that request was not queued here."""

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
        self.request_number = 0
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
        """VipConnectRequest: connect to a waiting server at a node; return the attributes of its VI. timeout:
        nanoseconds; 0: none. Raises ViaError, also if the VI is not idle."""
        await self._send_request(Op.CONNECT, node, discriminator, timeout)
        return self.attributes

    def connect_peer_request(self, node: int, discriminator: bytes, timeout: int = 0) -> None:
        """VipConnectPeerRequest: start a peer-to-peer connection to a VI at a node. Arguments as for `connect_request`.
        Raises ViaError if the VI is not idle."""
        self._peer_request = self._send_request(Op.CONNECT_PEER, node, discriminator, timeout)

    def connect_peer_done(self) -> ViAttributes | None:
        """VipConnectPeerDone: return the attributes of the peer's VI, or None (VIP_NOT_DONE) before the request is
        answered. Raises ViaError."""
        request = self._pending_request()
        if not request.done:
            return None
        request.result()
        return self.attributes

    async def connect_peer_wait(self) -> ViAttributes:
        """VipConnectPeerWait: wait until the request is answered. Raises ViaError."""
        await self._pending_request()
        return self.attributes

    async def connect_peer(self, node: int, discriminator: bytes, timeout: int = 0) -> ViAttributes:
        """VipConnectPeerRequest and VipConnectPeerWait: connect peer to peer. Arguments and result as for
        `connect_request`."""
        self.connect_peer_request(node, discriminator, timeout)
        return await self.connect_peer_wait()

    async def accept(self, request: ConnectionRequest) -> None:
        """VipConnectAccept: connect to the VI that has sent a request. Raises ViaError."""
        answer = self._nic.command(Command(Op.ACCEPT, vi=self.number, value=request.number))
        answer.add_callback(self._on_accepted)  # immediately: an error that ends the connection may follow
        await answer

    async def disconnect(self) -> None:
        """VipDisconnect: end the connection; posted descriptors are returned with DESC_FLUSHED_ERROR."""
        await self._nic.command(Command(Op.DISCONNECT, vi=self.number))
        self.state = ViState.IDLE

    async def query(self) -> ViQuery:
        """VipQueryVi: query the VI's state from the kernel agent. Raises ViaError."""
        reply = await self._nic.command(Command(Op.QUERY_VI, vi=self.number))
        empty = self.send_queue.is_empty, self.receive_queue.is_empty
        return ViQuery(ViState(reply.value), self.attributes, *empty)

    async def set_attributes(self, attributes: ViAttributes) -> None:
        """VipSetViAttributes: change the VI's attributes. Raises ViaError unless the VI is idle."""
        level, size, ptag, rdma_write, rdma_read = attributes
        value = pack_attributes(level, rdma_write, rdma_read)
        await self._nic.command(Command(Op.SET_VI, self.number, ptag=ptag, size=size, value=value))
        self.attributes = attributes

    async def destroy(self) -> None:
        """VipDestroyVi: destroy the VI; completed descriptors that were not dequeued are dropped. Raises ViaError unless the
        VI is idle and has no posted descriptors."""
        await self._nic.command(Command(Op.DESTROY_VI, vi=self.number))
        self._nic.forget(self)

    def _send_request(self, op: Op, node: int, discriminator: bytes, timeout: int) -> Completion[Command]:
        command = Command(op, vi=self.number, number=node, address=timeout, name=check_discriminator(discriminator))
        if self.state is not ViState.IDLE:
            raise ViaError(Result.INVALID_STATE, f"VI {self.number} is not idle")
        self.state = ViState.CONNECT_PENDING
        answer = self._nic.command(command, f"a connection to node {node}")
        answer.add_callback(self._on_answer)
        return answer

    def _on_answer(self, answer: Completion[Command]) -> None:
        self.state = ViState.IDLE
        self._on_accepted(answer)

    def _on_accepted(self, answer: Completion[Command]) -> None:
        try:
            self.request_number = answer.result().value
        except ViaError:
            return
        self.state = ViState.CONNECTED

    def _pending_request(self) -> Completion[Command]:
        if self._peer_request is None:
            raise ViaError(
                Result.INVALID_STATE, f"VI {self.number} has no peer request; call connect_peer_request first"
            )
        return self._peer_request


class ErrorReport(NamedTuple):
    """An asynchronous error (VIP_ERROR_DESCRIPTOR). resource: kind of the resource that it concerns. vi, cq: the VI or
    completion queue, if any."""

    error: AsyncError
    resource: Resource
    vi: Vi | None = None
    cq: CompletionQueue | None = None


def check_discriminator(discriminator: bytes) -> bytes:
    """Return the discriminator. Raises ViaError if it is too long."""
    if len(discriminator) > MAX_DISCRIMINATOR:
        size = len(discriminator)
        raise ViaError(Result.INVALID_PARAMETER, f"a discriminator has at most {MAX_DISCRIMINATOR} bytes, got {size}")
    return discriminator


def _limit(waiting: Completion[Value], alarm: Alarm, timeout: int, expire: Callable[[], object]) -> None:
    """Limit a wait to `timeout` ns; 0: no limit."""
    if timeout:
        waiting.add_callback(partial(_cancel_alarm, alarm(timeout, partial(_expire_unless_done, waiting, expire))))


def _expire_unless_done(waiting: Completion[Value], expire: Callable[[], object]) -> None:
    if not waiting.done:
        expire()


def _cancel_alarm(cancel: Callable[[], object], _: object) -> None:
    cancel()


def _check_entries(entries: int, minimum: int) -> int:
    if entries < minimum:
        raise ViaError(
            Result.INVALID_PARAMETER, f"a completion queue must have {minimum} or more entries, got {entries}"
        )
    return entries

"""A virtual interface as a program has it: its queues, and calls that connect it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocols.core.completion import Completion
from protocols.via.attributes import ConnectionRequest, ViAttributes, ViQuery
from protocols.via.kernel_agent import packed
from protocols.via.vip_descriptors import MAX_DISCRIMINATOR, Command, Op, Queue
from protocols.via.vipl_names import Result, ViaError, ViState
from protocols.via.work_queues import CompletionQueue, Descriptor, WorkQueue

if TYPE_CHECKING:
    from protocols.via.host import ViaNic


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
        value = packed(level, rdma_write, rdma_read)
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


def checked(discriminator: bytes) -> bytes:
    """Return a discriminator. Raises ViaError if it is too long."""
    if len(discriminator) > MAX_DISCRIMINATOR:
        size = len(discriminator)
        raise ViaError(Result.INVALID_PARAMETER, f"a discriminator has at most {MAX_DISCRIMINATOR} bytes, got {size}")
    return discriminator

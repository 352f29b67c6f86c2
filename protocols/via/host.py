"""VIA's host library: the VI Provider Library of the specification 1.0 (appendix A) under Python's names.

Calls to the kernel agent (memory, VIs, connections) are awaited; posting and polling descriptors are not. A failed call
raises ViaError with the specification's return code; a descriptor's own errors are bits of its status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, HostActions, Nic
from protocols.core.host_work import HostWork, host_work
from protocols.core.memory import Allocating, HostMemory, Pinning
from protocols.via import codec
from protocols.via.card import Codec
from protocols.via.firmware import RDMA_WRITE_ENABLED, Firmware
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import MAX_DISCRIMINATOR, Command, Op, Posted, Queue, Segment, Slots, doorbell
from protocols.via.vipl_names import AsyncError, Reliability, Result, ViaError, ViState
from protocols.via.work_queues import CompletionQueue, Descriptor, WorkQueue

_WORD: Final = 4


class Memory(NamedTuple):
    """Registered memory (VIP_MEM_HANDLE). address: where it begins for descriptors."""

    handle: int
    address: int
    size: int
    ptag: int

    def segment(self, offset: int = 0, length: int | None = None) -> Segment:
        """Return a data segment of this memory. Raises ValueError outside of it."""
        size = self.size - offset if length is None else length
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"a segment must lie in the {self.size} bytes of its memory, got {size} at {offset}")
        return Segment(self.address + offset, self.handle, size)


class ConnectionRequest(NamedTuple):
    """A request that VipConnectWait has returned. number: for `accept` and `reject`. is_peer: it asks for a peer's
    request with the same discriminator, and is not accepted."""

    number: int
    node: int
    reliability: Reliability
    max_transfer: int
    discriminator: bytes
    is_peer: bool


class Vi:
    """A virtual interface of a program. send_queue, receive_queue: its work queues. joined: number of the peer's request
    by which it was connected, if that came first, otherwise 0."""

    def __init__(
        self, nic: ViaNic, number: int, send_cq: CompletionQueue | None, receive_cq: CompletionQueue | None
    ) -> None:
        self.number: Final = number
        self.state = ViState.IDLE
        self.joined = 0
        self.send_queue: Final = WorkQueue(self, send_cq)
        self.receive_queue: Final = WorkQueue(self, receive_cq)
        self._nic = nic

    def post_send(self, descriptor: Descriptor) -> None:
        """VipPostSend: pass a descriptor to the NIC. Raises ViaError."""
        self._nic.post(self, Queue.SEND, descriptor)

    def post_receive(self, descriptor: Descriptor) -> None:
        """VipPostRecv; as `post_send`. Receives may be posted before the VI is connected."""
        self._nic.post(self, Queue.RECEIVE, descriptor)

    async def connect_request(self, node: int, discriminator: bytes, timeout: int = 0) -> None:
        """VipConnectRequest: connect to a server that waits at a node. timeout: nanoseconds; 0: none."""
        await self._connect(Op.CONNECT, node, discriminator, timeout)

    async def connect_peer(self, node: int, discriminator: bytes, timeout: int = 0) -> None:
        """VipConnectPeerRequest and VipConnectPeerWait: connect to a VI that does the same at a node."""
        await self._connect(Op.CONNECT_PEER, node, discriminator, timeout)

    async def accept(self, request: ConnectionRequest) -> None:
        """VipConnectAccept: connect to the VI that has sent a request."""
        await self._nic.command(Command(Op.ACCEPT, vi=self.number, value=request.number))
        self.state = ViState.CONNECTED

    async def disconnect(self) -> None:
        """VipDisconnect: end the connection; posted descriptors are returned with DESC_FLUSHED_ERROR."""
        await self._nic.command(Command(Op.DISCONNECT, vi=self.number))
        self.state = ViState.IDLE

    async def destroy(self) -> None:
        """VipDestroyVi. Raises ViaError unless it is idle, and its queues are empty."""
        await self._nic.command(Command(Op.DESTROY_VI, vi=self.number))
        self._nic.forget(self)

    async def _connect(self, op: Op, node: int, discriminator: bytes, timeout: int) -> None:
        self.state = ViState.CONNECT_PENDING
        command = Command(op, vi=self.number, number=node, address=timeout, name=_checked(discriminator))
        try:
            self.joined = (await self._nic.command(command, f"a connection to node {node}")).value
        except ViaError:
            self.state = ViState.IDLE
            raise
        self.state = ViState.CONNECTED


class ViaNic:
    """A node's access to its NIC (VipOpenNic). number: the node's number. size: number of nodes. reliability: the
    highest level of this provider. work: the cores of its host. on_error: called with every asynchronous error and its VI
    (VipErrorCallback)."""

    def __init__(
        self,
        adapter: Adapter,
        nic: HostActions,
        memory: HostMemory | Allocating,
        slots: Slots,
        settings: Settings,
    ) -> None:
        self.number: Final = adapter.number
        self.size: Final = len(adapter.addresses)
        self.address: Final = adapter.address
        self.settings: Final = settings
        self.reliability: Final = Reliability(settings.reliability)
        self.on_error: Callable[[AsyncError, Vi | None], object] = _ignore
        self.work: Final[HostWork] = host_work(nic)
        self._nic = nic
        self._memory: Pinning = memory
        self._heap = None if isinstance(memory, HostMemory) else memory
        self._slots = slots
        self._free = list(range(slots.count - 1, -1, -1))
        self._posted: dict[int, tuple[WorkQueue, Descriptor]] = {}
        self._commands: dict[int, Completion[Command]] = {}
        self._vis: dict[int, Vi] = {}
        self._last_ptag = 0
        self._last_handle = 0
        self._last_vi = 0
        self._error_slot = -1

    @property
    def free(self) -> int:
        """Number of descriptors and commands that can still be posted."""
        return len(self._free)

    def allocate(self, size: int) -> memoryview:
        """Allocate memory that can be registered. Raises MemoryError."""
        return memoryview(bytearray(size)) if self._heap is None else self._heap.allocate(size)

    def release(self, buffer: memoryview) -> None:
        """Free memory of `allocate`; it is not registered any more, and not used afterwards."""
        if self._heap is not None:
            self._heap.release(buffer)

    async def create_ptag(self) -> int:
        """VipCreatePtag: create a protection tag."""
        self._last_ptag = ptag = self._last_ptag + 1
        await self.command(Command(Op.CREATE_PTAG, ptag=ptag))
        return ptag

    async def destroy_ptag(self, ptag: int) -> None:
        """VipDestroyPtag. Raises ViaError while memory or a VI has the tag."""
        await self.command(Command(Op.DESTROY_PTAG, ptag=ptag))

    async def register(self, buffer: memoryview, ptag: int, *, rdma_write: bool = False) -> Memory:
        """VipRegisterMem: register memory. buffer: from `allocate`, if the NIC is another process. rdma_write: peers
        may write there. Raises ViaError."""
        memory = self._memory
        if self._heap is not None and not self._heap.has(buffer):
            raise ViaError(Result.INVALID_PARAMETER, "memory of a shared NIC must come from `allocate`")
        address = memory.pin_page(buffer, 1)
        self._last_handle = handle = self._last_handle + 1
        value = RDMA_WRITE_ENABLED if rdma_write else 0
        try:
            await self.command(Command(Op.REGISTER, 0, handle, ptag, address, len(buffer), value))
        except ViaError:
            memory.unpin(address)
            raise
        return Memory(handle, address, len(buffer), ptag)

    async def deregister(self, memory: Memory) -> None:
        """VipDeregisterMem: take memory back. Transfers that still use it fail with PROTECTION_ERROR."""
        await self.command(Command(Op.DEREGISTER, number=memory.handle))
        self._memory.unpin(memory.address)

    async def create_vi(
        self,
        ptag: int,
        reliability: Reliability | None = None,
        max_transfer: int | None = None,
        send_cq: CompletionQueue | None = None,
        receive_cq: CompletionQueue | None = None,
    ) -> Vi:
        """VipCreateVi. reliability, max_transfer: the provider's greatest if None. Raises ViaError."""
        self._last_vi = number = self._last_vi + 1 & 0xFFFF
        level = self.reliability if reliability is None else reliability
        size = self.settings.max_transfer if max_transfer is None else max_transfer
        await self.command(Command(Op.CREATE_VI, number, 0, ptag, 0, size, level))
        self._vis[number] = vi = Vi(self, number, send_cq, receive_cq)
        return vi

    def create_cq(self, entries: int) -> CompletionQueue:
        """VipCreateCQ. entries: completions that it holds."""
        return CompletionQueue(entries, lambda vi: self.on_error(AsyncError.VI_OVERRUN, vi))

    async def connect_wait(self, discriminator: bytes) -> ConnectionRequest:
        """VipConnectWait: wait for a connection request."""
        found = await self.command(Command(Op.WAIT, name=_checked(discriminator)), "a connection request")
        return ConnectionRequest(
            found.value, found.number, Reliability(found.ptag), found.size, found.name, bool(found.vi)
        )

    async def reject(self, request: ConnectionRequest) -> None:
        """VipConnectReject."""
        await self.command(Command(Op.REJECT, value=request.number))

    def node_by_name(self, name: str) -> int:
        """VipNSGetHostByName: the node with this name, its number in decimal. Raises ViaError."""
        if not name.isdecimal() or int(name) >= self.size:
            raise ViaError(Result.ERROR_NAMESERVICE, f"no node {name!r}: names are 0 to {self.size - 1}")
        return int(name)

    def name_by_node(self, node: int) -> str:
        """VipNSGetHostByAddr; the reverse of `node_by_name`."""
        if not 0 <= node < self.size:
            raise ViaError(Result.ERROR_NAMESERVICE, f"no node {node}: nodes are 0 to {self.size - 1}")
        return str(node)

    # For this library.

    def post(self, vi: Vi, queue: Queue, descriptor: Descriptor) -> None:
        """Pass a descriptor to the NIC. Raises ViaError."""
        if descriptor.is_posted:
            raise ViaError(Result.INVALID_PARAMETER, "the descriptor is posted already")
        if not self._free:
            raise ViaError(Result.ERROR_RESOURCE, f"all {self._slots.count} descriptors are posted")
        slot = self._free[-1]
        length = sum([segment.length for segment in descriptor.data])
        try:
            written = self._slots.write(
                slot,
                Posted(descriptor.control, descriptor.immediate, length, descriptor.remote, tuple(descriptor.data)),
            )
        except ValueError as error:
            raise ViaError(Result.DESCRIPTOR_ERROR, str(error)) from error
        self._free.pop()
        work = vi.send_queue if queue is Queue.SEND else vi.receive_queue
        work.post(descriptor)
        self._posted[slot] = work, descriptor
        self._nic.ring_doorbell(doorbell(queue, vi.number, slot), written, 0)

    def command(self, command: Command, what: str = "the kernel agent") -> Completion[Command]:
        """Pass a command to the kernel agent; its result fails with ViaError."""
        if self._error_slot < 0:
            self._await_error()
        answer: Completion[Command] = Completion("%s", what)
        if not self._free:
            answer.fail(ViaError(Result.ERROR_RESOURCE, f"all {self._slots.count} descriptors are posted"))
            return answer
        slot = self._free.pop()
        self._commands[slot] = answer
        self._write(slot, command)
        return answer

    def forget(self, vi: Vi) -> None:
        """Remove a destroyed VI."""
        del self._vis[vi.number]

    def completed(self, index: int) -> bool | None:
        """Handle a returned descriptor or command."""
        posted = self._posted.pop(index, None)
        if posted is not None:
            self._free.append(index)
            queue, descriptor = posted
            descriptor.immediate, descriptor.length, descriptor.status = self._slots.result(index)
            queue.finish(descriptor)
            return None
        result = self._slots.read_command(index)
        if index == self._error_slot:
            vi = self._vis.get(result.vi)
            self._await_error()
            error = AsyncError(result.value)
            if vi is not None and error is not AsyncError.VI_OVERRUN and vi.state is ViState.CONNECTED:
                vi.state = ViState.ERROR
            self.on_error(error, vi)
            return None
        answer = self._commands.pop(index)
        self._free.append(index)
        if result.status == Result.SUCCESS:
            answer.complete(result)
        else:
            code = Result(result.status)
            answer.fail(ViaError(code, f"{Op(result.op).name.lower()} failed"))
        return None

    def waiting(self) -> list[str]:
        return [answer.what for answer in self._commands.values() if answer.what != "a connection request"]

    def _await_error(self) -> None:
        """Leave a command with the kernel agent, which answers it with the next asynchronous error."""
        if self._error_slot < 0:
            self._error_slot = self._free.pop()
        self._write(self._error_slot, Command(Op.NEXT_ERROR))

    def _write(self, slot: int, command: Command) -> None:
        self._slots.write_command(slot, command)
        self._nic.ring_doorbell(doorbell(Queue.COMMAND, 0, slot), _WORD, 0)


def plug(settings: Settings | None = None, codec: Codec = codec) -> Callable[[Adapter, Nic], Agent]:
    """Make VIA's plug. codec: replaces the generated one (`protocols.core.scapy_codec`)."""
    own = settings if settings is not None else Settings()

    def build(adapter: Adapter, nic: Nic) -> Agent:
        memory, slots = HostMemory(), Slots(own.slots)
        firmware = Firmware(adapter, nic, memory, slots, own, codec)
        return Agent(firmware, ViaNic(adapter, nic, memory, slots, own))

    return build


def _checked(discriminator: bytes) -> bytes:
    if len(discriminator) > MAX_DISCRIMINATOR:
        size = len(discriminator)
        raise ViaError(Result.INVALID_PARAMETER, f"a discriminator has at most {MAX_DISCRIMINATOR} bytes, got {size}")
    return discriminator


def _ignore(_error: AsyncError, _vi: Vi | None) -> None:
    pass

"""VIA's host library: the VI Provider Library of the specification 1.0 (appendix A) under Python's names.

Calls to the kernel agent (memory, VIs, connections) are awaited; posting and polling descriptors are not. A failed call
raises ViaError with the specification's return code; a descriptor's own errors are bits of its status.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Host, HostActions, Nic
from protocols.core.host_work import HostWork, host_work
from protocols.core.memory import Allocating, HostMemory, Pinning
from protocols.via import codec
from protocols.via.attributes import ConnectionRequest, MemoryAttributes, NicAttributes, ViAttributes
from protocols.via.card import WRITABLE, Codec
from protocols.via.firmware import Firmware
from protocols.via.kernel_agent import pack_attributes, pack_permissions
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import (
    MAX_DISCRIMINATOR,
    MAX_SEGMENTS,
    MAX_VIS,
    Command,
    Memory,
    Op,
    Queue,
    Slots,
    doorbell,
)
from protocols.via.vipl_names import AsyncError, Reliability, Resource, Result, ViaError, ViState
from protocols.via.virtual_interface import CompletionQueue, Descriptor, ErrorReport, Vi, WorkQueue, check_discriminator

_WORD: Final = 4
_VI_NUMBER_MASK: Final = MAX_VIS - 1
_REQUEST: Final = "a connection request"
_ALARM: Final = "an alarm"
_IDLE: Final = (_REQUEST, _ALARM)
"""Commands that may be pending while no program waits for them."""
_RESOURCES: Final = {AsyncError.POST_DESC: Resource.DESCRIPTOR, AsyncError.CATASTROPHIC: Resource.NIC}
"""Resources of asynchronous errors; other errors concern a VI."""


class ViaNic(Host):
    """A node's handle of its open NIC (VipOpenNic). number: the node's number. size: number of nodes. reliability: the
    highest level of this provider. work: the cores of the host. on_error: called with every asynchronous error
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
        self.on_error: Callable[[ErrorReport], object] = _ignore
        self.work: Final[HostWork] = host_work(nic)
        self._mtu = adapter.mtu
        self._memories: dict[int, tuple[Memory, MemoryAttributes]] = {}
        self._has_name_service = True
        self._names: Final = adapter.names or [str(number) for number in range(self.size)]
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
    def free_descriptors(self) -> int:
        """Number of descriptors and commands that can still be posted."""
        return len(self._free)

    @property
    def registered(self) -> int:
        """Number of registered memory regions."""
        return len(self._memories)

    async def open(self) -> None:
        """VipOpenNic, after `close`."""
        await self.command(Command(Op.OPEN))

    async def close(self) -> None:
        """VipCloseNic: end all connections, and free all VIs, memory and protection tags. Calls then fail until `open`."""
        await self.command(Command(Op.CLOSE))
        for memory, _ in self._memories.values():
            self._memory.unpin(memory.address)
        self._memories.clear()
        for vi in list(self._vis.values()):
            vi.state = ViState.IDLE
            self.forget(vi)

    def query(self) -> NicAttributes:
        """VipQueryNic: return the NIC's attributes."""
        levels = [level for level in Reliability if level <= self.reliability]
        reads = [level for level in levels if level is not Reliability.UNRELIABLE and self.settings.rdma_read]
        return NicAttributes(
            f"via{self.number}", self.address, self._mtu, MAX_VIS, self._slots.count, MAX_SEGMENTS,
            self.settings.max_transfer, MAX_DISCRIMINATOR, self.reliability, tuple(reads),
        )  # fmt: skip

    def query_system_management_info(self) -> list[int]:
        """VipQuerySystemManagementInfo with VIP_SMI_AUTODISCOVERY: the nodes that can be connected to."""
        return list(range(self.size))

    def allocate(self, size: int) -> memoryview:
        """Allocate memory that can be registered. Raises MemoryError."""
        return memoryview(bytearray(size)) if self._heap is None else self._heap.allocate(size)

    def release(self, buffer: memoryview) -> None:
        """Free memory of `allocate`. It must be deregistered first."""
        if self._heap is not None:
            self._heap.release(buffer)

    async def create_ptag(self) -> int:
        """VipCreatePtag: create a protection tag."""
        self._last_ptag = ptag = self._last_ptag + 1
        await self.command(Command(Op.CREATE_PTAG, ptag=ptag))
        return ptag

    async def destroy_ptag(self, ptag: int) -> None:
        """VipDestroyPtag: destroy a protection tag. Raises ViaError while memory or a VI has the tag."""
        await self.command(Command(Op.DESTROY_PTAG, ptag=ptag))

    async def register(
        self, buffer: memoryview, ptag: int, *, rdma_write: bool = False, rdma_read: bool = False
    ) -> Memory:
        """VipRegisterMem: register memory. buffer: contiguous items of any type; from `allocate` if the NIC is in another
        process; a read-only buffer can be sent only. rdma_write, rdma_read: whether peers may write or read the memory by
        RDMA. Raises ViaError."""
        memory = self._memory
        if not buffer.c_contiguous:
            raise ViaError(Result.INVALID_PARAMETER, "memory must be contiguous")
        buffer = buffer.cast("B")
        if rdma_write and buffer.readonly:
            raise ViaError(Result.INVALID_PARAMETER, "peers cannot write to read-only memory")
        if self._heap is not None and not self._heap.has(buffer):
            raise ViaError(Result.INVALID_PARAMETER, "memory of a shared NIC must come from `allocate`")
        address = memory.pin_page(buffer, 1)
        self._last_handle = handle = self._last_handle + 1
        value = pack_permissions(rdma_write, rdma_read) | (0 if buffer.readonly else WRITABLE)
        try:
            await self.command(Command(Op.REGISTER, 0, handle, ptag, address, len(buffer), value))
        except ViaError:
            memory.unpin(address)
            raise
        registered = Memory(handle, address, len(buffer), ptag)
        self._memories[handle] = registered, MemoryAttributes(ptag, rdma_write, rdma_read)
        return registered

    async def deregister(self, memory: Memory) -> None:
        """VipDeregisterMem: deregister memory. Transfers that still use it fail with PROTECTION_ERROR."""
        await self.command(Command(Op.DEREGISTER, number=memory.handle, size=memory.size))
        del self._memories[memory.handle]
        self._memory.unpin(memory.address)

    def query_memory(self, memory: Memory) -> MemoryAttributes:
        """VipQueryMem: return the attributes of registered memory. Raises ViaError."""
        entry = self._memories.get(memory.handle)
        if entry is None:
            raise ViaError(Result.INVALID_PARAMETER, f"memory {memory.handle} is not registered")
        return entry[1]

    async def set_memory_attributes(self, memory: Memory, attributes: MemoryAttributes) -> Memory:
        """VipSetMemAttributes: change the protection tag and the peers' permissions; return the memory with the new tag.
        Raises ViaError."""
        ptag, rdma_write, rdma_read = attributes
        await self.command(
            Command(Op.SET_MEMORY, number=memory.handle, ptag=ptag, value=pack_permissions(rdma_write, rdma_read))
        )
        changed = Memory(memory.handle, memory.address, memory.size, ptag)
        self._memories[memory.handle] = changed, attributes
        return changed

    async def create_vi(
        self,
        ptag: int,
        reliability: Reliability | None = None,
        max_transfer: int | None = None,
        send_cq: CompletionQueue | None = None,
        receive_cq: CompletionQueue | None = None,
        *,
        rdma_write: bool = True,
        rdma_read: bool = False,
    ) -> Vi:
        """VipCreateVi: create a VI. reliability, max_transfer: None for the provider's maximum. rdma_write, rdma_read:
        whether peers may access memory by RDMA through the VI. Raises ViaError."""
        if any(cq is not None and cq.nic is not self for cq in (send_cq, receive_cq)):
            raise ViaError(Result.INVALID_PARAMETER, "the completion queue belongs to another NIC")
        if len(self._vis) >= MAX_VIS:
            raise ViaError(Result.ERROR_RESOURCE, f"all {MAX_VIS} VIs exist: destroy one first")
        number = self._last_vi + 1 & _VI_NUMBER_MASK
        while number in self._vis:
            number = number + 1 & _VI_NUMBER_MASK
        self._last_vi = number
        level = self.reliability if reliability is None else reliability
        size = self.settings.max_transfer if max_transfer is None else max_transfer
        vi = Vi(self, number, ViAttributes(level, size, ptag, rdma_write, rdma_read), send_cq, receive_cq)
        value = pack_attributes(level, rdma_write, rdma_read)
        try:
            await self.command(Command(Op.CREATE_VI, number, 0, ptag, 0, size, value))
        except ViaError:
            self.forget(vi)
            raise
        self._vis[number] = vi
        return vi

    def create_cq(self, entries: int) -> CompletionQueue:
        """VipCreateCQ: create a completion queue. entries: capacity; completions beyond it are lost, and reported as
        VI_OVERRUN. Raises ViaError."""
        return CompletionQueue(self, entries, self._overrun, self.alarm)

    async def connect_wait(self, discriminator: bytes, timeout: int = 0) -> ConnectionRequest:
        """VipConnectWait: wait for a connection request. timeout: nanoseconds; 0: none. Raises ViaError."""
        reply = await self.command(Command(Op.WAIT, address=timeout, name=check_discriminator(discriminator)), _REQUEST)
        return ConnectionRequest(
            reply.value, reply.number, Reliability(reply.ptag), reply.size, reply.name, bool(reply.vi)
        )

    async def reject(self, request: ConnectionRequest) -> None:
        """VipConnectReject: reject a connection request. Raises ViaError."""
        await self.command(Command(Op.REJECT, value=request.number))

    def init_name_service(self) -> None:
        """VipNSInit. Needed only after `shut_down_name_service`: the name service is initialized by default."""
        self._has_name_service = True

    def shut_down_name_service(self) -> None:
        """VipNSShutdown: later lookups fail."""
        self._has_name_service = False

    def node_by_name(self, name: str, index: int = 0) -> int:
        """VipNSGetHostByName: return the number of a node. name: the node's name in the cluster; without a cluster, the
        number in decimal. index: index among the node's ranks, if it has several (NameIndex). Raises ViaError."""
        self._check_name_service()
        numbers = [number for number, node_name in enumerate(self._names) if node_name == name]
        if not 0 <= index < len(numbers):
            reason = f"node {name!r} has {len(numbers)} ranks, no rank {index}" if numbers else f"no node {name!r}"
            raise ViaError(Result.ERROR_NAMESERVICE, reason)
        return numbers[index]

    def name_by_node(self, node: int) -> str:
        """VipNSGetHostByAddr: return a node's name, which its ranks share. Raises ViaError."""
        self._check_name_service()
        if not 0 <= node < self.size:
            raise ViaError(Result.ERROR_NAMESERVICE, f"no node {node}: nodes are 0 to {self.size - 1}")
        return self._names[node]

    # For this library.

    def post(self, vi: Vi, queue: int, descriptor: Descriptor) -> None:
        """Pass a descriptor to the NIC. Raises ViaError."""
        if descriptor.is_posted:
            raise ViaError(Result.INVALID_PARAMETER, "the descriptor is posted already")
        if not self._free:
            raise self._no_slot_error()
        slot = self._free[-1]
        data, length = descriptor.data, 0
        for segment in data:
            length += segment.length
        try:
            written = self._slots.write(slot, descriptor.control, descriptor.immediate, length, descriptor.remote, data)
        except ValueError as error:
            raise ViaError(Result.DESCRIPTOR_ERROR, str(error)) from error
        self._free.pop()
        work = vi.send_queue if queue == Queue.SEND else vi.receive_queue
        work.post(descriptor)
        self._posted[slot] = work, descriptor
        self._nic.ring_doorbell(doorbell(queue, vi.number, slot), written, 0)

    def command(self, command: Command, description: str = "the kernel agent") -> Completion[Command]:
        """Pass a command to the kernel agent; the returned completion fails with ViaError. description: for a report of
        stuck programs."""
        return self._submit(command, description)[1]

    def alarm(self, timeout: int, expire: Callable[[], object]) -> Callable[[], object]:
        """Call `expire` after `timeout` nanoseconds; return a function that cancels the call. Raises ViaError."""
        slot, answer = self._submit(Command(Op.ALARM, address=timeout), _ALARM)
        if slot < 0:
            answer.result()
        answer.add_callback(partial(_if_expired, expire))

        def cancel() -> None:
            if not answer.done:
                self.command(Command(Op.CANCEL, number=slot), _ALARM)

        return cancel

    def forget(self, vi: Vi) -> None:
        """Remove a destroyed VI."""
        self._vis.pop(vi.number, None)
        vi.send_queue.cancel()
        vi.receive_queue.cancel()

    def on_completion(self, index: int) -> bool | None:
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
            if vi is not None and result.number and vi.state is ViState.CONNECTED:
                vi.state = ViState.ERROR
            self.on_error(ErrorReport(error, _RESOURCES.get(error, Resource.VI), vi))
            return None
        answer = self._commands.pop(index)
        self._free.append(index)
        if result.status == Result.SUCCESS:
            answer.complete(result)
        else:
            code = Result(result.status)
            answer.fail(ViaError(code, f"{Op(result.op).name.lower()} failed"))
        return None

    def pending_work(self) -> list[str]:
        return [answer.what for answer in self._commands.values() if answer.what not in _IDLE]

    def _overrun(self, vi: Vi, cq: CompletionQueue) -> None:
        self.on_error(ErrorReport(AsyncError.VI_OVERRUN, Resource.CQ, vi, cq))

    def _no_slot_error(self) -> ViaError:
        text = f"all {self._slots.count} slots are in use: wait for a descriptor, or raise the setting slots"
        return ViaError(Result.ERROR_RESOURCE, text)

    def _check_name_service(self) -> None:
        if not self._has_name_service:
            raise ViaError(Result.ERROR_NAMESERVICE, "the name service is shut down")

    def _submit(self, command: Command, description: str) -> tuple[int, Completion[Command]]:
        """Pass a command to the kernel agent; return its slot, or -1 if the command fails at once, and its completion."""
        if self._error_slot < 0:
            self._await_error()
        answer: Completion[Command] = Completion("%s", description)
        if not self._free:
            answer.fail(self._no_slot_error())
            return -1, answer
        slot = self._free[-1]
        try:
            self._slots.write_command(slot, command)
        except struct.error as error:
            answer.fail(ViaError(Result.INVALID_PARAMETER, f"a parameter of {Op(command.op).name.lower()}: {error}"))
            return -1, answer
        self._free.pop()
        self._commands[slot] = answer
        self._ring(slot)
        return slot, answer

    def _await_error(self) -> None:
        """Post a command that the kernel agent completes with the next asynchronous error."""
        if self._error_slot < 0:
            self._error_slot = self._free.pop()
        self._slots.write_command(self._error_slot, Command(Op.NEXT_ERROR))
        self._ring(self._error_slot)

    def _ring(self, slot: int) -> None:
        self._nic.ring_doorbell(doorbell(Queue.COMMAND, 0, slot), _WORD, 0)


def plug(settings: Settings | None = None, codec: Codec = codec) -> Callable[[Adapter, Nic], Agent]:
    """Make VIA's plug. codec: replaces the generated codec (`protocols.core.scapy_codec`)."""
    config = settings if settings is not None else Settings()

    def build(adapter: Adapter, nic: Nic) -> Agent:
        memory, slots = HostMemory(), Slots(config.slots)
        firmware = Firmware(adapter, nic, memory, slots, config, codec)
        return Agent(firmware, ViaNic(adapter, nic, memory, slots, config))

    return build


def _if_expired(expire: Callable[[], object], answer: Completion[Command]) -> None:
    try:
        answer.result()
    except ViaError as error:
        if error.result is Result.TIMEOUT:
            expire()


def _ignore(_report: ErrorReport) -> None:
    pass

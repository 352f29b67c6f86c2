"""The kernel agent: set-up commands of the VI Provider Library, for memory, VIs and connections (section 2.1 of the
specification).

A command is written to a slot of the memory that host and NIC share, and its result to the same slot. Commands that
wait for a connection request, an alarm or an asynchronous error complete later.
"""

from __future__ import annotations

from typing import Final

from protocols.core.memory import UnpinnedError
from protocols.via import states
from protocols.via.card import RDMA_READ_ENABLED, RDMA_WRITE_ENABLED, REGISTER, WRITABLE, Card, Region, Vi
from protocols.via.connections import Connections
from protocols.via.vip_descriptors import MAX_VIS, Command, Op
from protocols.via.vipl_names import Reliability, Result, ViState

_LEVEL_MASK: Final = 0xFF
_STATES: Final = {
    states.IDLE: ViState.IDLE,
    states.PENDING: ViState.CONNECT_PENDING,
    states.CONNECTED: ViState.CONNECTED,
    states.ERROR: ViState.ERROR,
}


def pack_attributes(reliability: int, rdma_write: bool, rdma_read: bool) -> int:
    """Pack a VI's reliability level and RDMA permissions into a command's value."""
    return reliability | pack_permissions(rdma_write, rdma_read) << 8


def pack_permissions(rdma_write: bool, rdma_read: bool) -> int:
    """Pack the RDMA permissions of a memory region into a command's value."""
    return (RDMA_WRITE_ENABLED if rdma_write else 0) | (RDMA_READ_ENABLED if rdma_read else 0)


class KernelAgent:
    """The kernel agent of one NIC."""

    def __init__(self, card: Card, connections: Connections) -> None:
        self._card = card
        self._connections = connections

    def execute(self, now: int, slot: int) -> None:
        """Execute the command in this slot."""
        card = self._card
        command = card.slots.read_command(slot)
        op = command.op
        if op == Op.NEXT_ERROR:
            card.await_error(slot)
        elif op in (Op.OPEN, Op.CLOSE):
            self._open_or_close(slot, command)
        elif card.state != states.OPEN:
            card.answer(slot, Result.INVALID_STATE, command)
        elif op == Op.WAIT:
            self._connections.wait(now, slot, command)
        elif op == Op.ALARM:
            card.timers.set(~slot, now + command.address)
        elif op == Op.CANCEL:
            self._cancel(slot, command)
        elif op == Op.REJECT:
            self._connections.reject(slot, command)
        elif op in (Op.CONNECT, Op.CONNECT_PEER, Op.ACCEPT, Op.DISCONNECT, Op.DESTROY_VI, Op.QUERY_VI, Op.SET_VI):
            vi = card.vis.get(command.vi)
            if vi is None:
                card.answer(slot, Result.INVALID_PARAMETER, command)
            else:
                self._execute_for_vi(now, slot, vi, command)
        else:
            self._finish(slot, command, self._execute_for_memory(command))

    def expire(self, slot: int) -> None:
        """Time out the command in this slot."""
        self._connections.expire(slot)

    def _finish(self, slot: int, command: Command, result: Result) -> None:
        if result is not Result.SUCCESS:
            self._card.counters.invalid += 1
        self._card.answer(slot, result, command)

    def _open_or_close(self, slot: int, command: Command) -> None:
        card = self._card
        if command.op == Op.OPEN:
            card.step("open")
        else:
            if card.state == states.OPEN:
                self._connections.close()
                card.registration_epoch += 1
                card.vis.clear()
                card.regions.clear()
                card.ptags.clear()
            card.step("close")
        card.answer(slot, Result.SUCCESS, command)

    def _cancel(self, slot: int, command: Command) -> None:
        """Cancel an alarm."""
        card, alarm = self._card, command.number
        if ~alarm in card.timers and card.slots.read_command(alarm).op == Op.ALARM:
            card.timers.cancel(~alarm)
            card.answer(alarm, Result.SUCCESS, card.slots.read_command(alarm))
        card.answer(slot, Result.SUCCESS, command)

    def _execute_for_vi(self, now: int, slot: int, vi: Vi, command: Command) -> None:
        """Execute a command for a VI."""
        card, op = self._card, command.op
        if op == Op.DISCONNECT:
            self._connections.disconnect(vi)
            card.answer(slot, Result.SUCCESS, command)
        elif op == Op.QUERY_VI:
            card.answer(slot, Result.SUCCESS, command._replace(value=_STATES[vi.state]))
        elif vi.state != states.IDLE:
            card.answer(slot, Result.INVALID_STATE, command)
        elif op == Op.DESTROY_VI:
            if vi.receives or vi.queue:
                card.answer(slot, Result.ERROR_RESOURCE, command)
            else:
                del card.vis[vi.number]
                card.answer(slot, Result.SUCCESS, command)
        elif op == Op.SET_VI:
            self._finish(slot, command, self._set_vi(vi, command))
        elif op == Op.ACCEPT:
            self._connections.accept(slot, vi, command)
        elif command.number >= card.nodes:
            card.answer(slot, Result.NOT_REACHABLE, command)
        else:
            self._connections.connect(now, slot, vi, command)

    def _execute_for_memory(self, command: Command) -> Result:
        """Execute a command for protection tags, memory or a new VI."""
        card, op, number = self._card, command.op, command.number
        if op != Op.CREATE_VI:
            card.registration_epoch += 1
        if op in (Op.REGISTER, Op.DEREGISTER):
            card.work.spend(REGISTER, command.size)
        if op == Op.CREATE_PTAG:
            card.ptags.add(command.ptag)
        elif op == Op.DESTROY_PTAG:
            return self._destroy_ptag(command.ptag)
        elif op == Op.REGISTER:
            return self._register(command)
        elif op == Op.SET_MEMORY:
            region = card.regions.get(number)
            if region is None:
                return Result.INVALID_PARAMETER
            return self._set_memory(number, region, command)
        elif op == Op.DEREGISTER:
            if card.regions.pop(number, None) is None:
                return Result.INVALID_PARAMETER
        elif op == Op.CREATE_VI:
            return self._create_vi(command)
        else:
            return Result.ERROR_NOT_SUPPORTED
        return Result.SUCCESS

    def _destroy_ptag(self, ptag: int) -> Result:
        card = self._card
        if ptag not in card.ptags:
            return Result.INVALID_PARAMETER
        in_use = {region.ptag for region in card.regions.values()} | {vi.ptag for vi in card.vis.values()}
        if ptag in in_use:
            return Result.ERROR_RESOURCE
        card.ptags.discard(ptag)
        return Result.SUCCESS

    def _register(self, command: Command) -> Result:
        card = self._card
        if command.number in card.regions:
            return Result.INVALID_PARAMETER
        try:
            card.memory.view(command.address, command.size)
        except UnpinnedError:
            return Result.INVALID_PARAMETER
        return self._set_memory(
            command.number, Region(command.address, command.size, 0, command.value & WRITABLE), command
        )

    def _set_memory(self, number: int, region: Region, command: Command) -> Result:
        card = self._card
        if command.ptag not in card.ptags:
            return Result.INVALID_PTAG
        if command.value & RDMA_READ_ENABLED and not self._can_read:
            return Result.INVALID_RDMAREAD
        writable = region.attributes & WRITABLE
        if command.value & RDMA_WRITE_ENABLED and not writable:
            return Result.INVALID_PARAMETER
        card.regions[number] = Region(region.address, region.size, command.ptag, command.value & ~WRITABLE | writable)
        return Result.SUCCESS

    @property
    def _can_read(self) -> bool:
        settings = self._card.settings
        return bool(settings.rdma_read) and settings.reliability != Reliability.UNRELIABLE

    def _create_vi(self, command: Command) -> Result:
        card = self._card
        if command.vi in card.vis or command.vi >= MAX_VIS:
            return Result.INVALID_PARAMETER
        vi = Vi(command.vi, 0, 0, 0, 0)
        result = self._set_vi(vi, command)
        if result is Result.SUCCESS:
            card.vis[command.vi] = vi
        return result

    def _set_vi(self, vi: Vi, command: Command) -> Result:
        card, settings = self._card, self._card.settings
        level, attributes = command.value & _LEVEL_MASK, command.value >> 8
        if command.ptag not in card.ptags:
            return Result.INVALID_PTAG
        if level not in [int(member) for member in Reliability] or level > settings.reliability:
            return Result.INVALID_RELIABILITY_LEVEL
        if not 0 < command.size <= settings.max_transfer:
            return Result.INVALID_MTU
        if attributes & RDMA_READ_ENABLED and (level == Reliability.UNRELIABLE or not self._can_read):
            return Result.INVALID_RDMAREAD
        vi.ptag, vi.reliability, vi.max_transfer, vi.attributes = command.ptag, level, command.size, attributes
        return Result.SUCCESS

"""Split drivers: the firmware and the host library of a protocol in two processes.

The processes share only the NIC's descriptor memory, the host's pinned memory, and numbers: doorbells in one direction,
returned descriptors in the other. The host is not trusted: firmware reads a descriptor once and uses the copy. A host
attaches to a slot of the NIC, and detaches; then another host may attach to the slot. The NIC remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocols.core.firmware import Adapter, Buffer, Firmware, FirmwareActions, Host, HostActions
from protocols.core.memory import Allocating, SharedDmaMemory

OnDoorbell = Callable[[int, int], None]
"""`Firmware.on_doorbell` for the doorbells of one host."""


class HostSlot(NamedTuple):
    """A host's slot at a NIC. slots: number of slots of the NIC. turn: ordinal of this host among the hosts that have
    attached to the slot, from 1."""

    number: int
    slots: int
    turn: int


class SharedActions(Protocol):
    """`FirmwareActions` of a NIC that several hosts share, each in a slot."""

    __slots__ = ()

    def dma_read(self, segments: Sequence[memoryview]) -> bytes: ...

    def send(self, frame: Buffer) -> bool | None: ...

    def when_sent(self, then: Callable[[int], object]) -> None: ...

    def send_later(self, make: Callable[[], bytes]) -> None: ...

    def dma_write(self, target: memoryview, data: Buffer) -> None: ...

    def post_completion(self, host: int, index: int) -> None:
        """Do `FirmwareActions.post_completion` or `interrupt` for the host in a slot; do nothing for an empty slot."""
        ...


class SharedNic(Protocol):
    """A NIC with hosts that attach and detach."""

    @property
    def adapter(self) -> Adapter:
        """The NIC's current adapter."""
        ...

    @property
    def firmware(self) -> Firmware:
        """The current firmware, which handles frames and deadlines, and has the counters."""
        ...

    def attach(self, now: int, host: int, memory: SharedDmaMemory, descriptors: memoryview) -> OnDoorbell:
        """Attach a host to a slot. host: number of the slot. memory: the host's memory. descriptors: descriptor memory
        of the NIC, which the host writes, too."""
        ...

    def detach(self, now: int, host: int, incarnation: int) -> None:
        """Detach the host of a slot, which has ended or has passed invalid descriptors; its memory is not accessed
        afterwards. incarnation: the next incarnation, for a NIC that must restart and notify its peers."""
        ...


@dataclass(frozen=True, slots=True)
class SplitDriver:
    """A protocol's split driver.

    descriptors: bytes of descriptor memory per host. max_in_flight: maximum doorbells in flight per host, and maximum
    returned descriptors. nic: makes a NIC without hosts. host: makes the host library of a slot, given the slot's
    descriptor memory. hosts: maximum number of slots.
    """

    descriptors: int
    max_in_flight: int
    nic: Callable[[Adapter, SharedActions], SharedNic]
    host: Callable[[Adapter, HostActions, Allocating, memoryview, HostSlot], Host]
    hosts: int = 1


class SingleHostActions(FirmwareActions):
    """`FirmwareActions` of a NIC with a single host, in slot 0."""

    __slots__ = ("_nic",)

    def __init__(self, nic: SharedActions) -> None:
        self._nic = nic

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return self._nic.dma_read(segments)

    def send(self, frame: Buffer) -> bool | None:
        return self._nic.send(frame)

    def when_sent(self, then: Callable[[int], object]) -> None:
        self._nic.when_sent(then)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self._nic.send_later(make)

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        self._nic.dma_write(target, data)

    def post_completion(self, index: int) -> None:
        self._nic.post_completion(0, index)

    def interrupt(self, index: int) -> None:
        self._nic.post_completion(0, index)

"""The split driver: firmware in an agent process, and the host library in the process of a program, which may end at any
time.

While no host is attached, cards get no receipts, and their senders resend them; so the next host receives messages that were
sent before it attached. A NIC whose host has ended begins a new incarnation and announces it: so peers learn that messages
in flight are lost, even peers that only wait to receive.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import Allocating, DmaMemory, HostMemory
from protocols.core.split_memory import HostSlot, OnDoorbell, SharedActions, SingleHostActions, SplitDriver

from .descriptors import COUNT, SIZE, Descriptors
from .firmware import Firmware
from .host import Host
from .settings import Settings


class Nic:
    """A NIC without a host, or with one. Implements `protocols.core.split_memory.SharedNic`."""

    def __init__(self, adapter: Adapter, nic: SharedActions, settings: Settings) -> None:
        self.adapter = adapter
        self._nic: Final = SingleHostActions(nic)
        self._settings = settings
        self.firmware = self._make_firmware()

    def attach(self, now: int, host: int, memory: DmaMemory, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        self.firmware.attach(memory, Descriptors(descriptors))
        return self.firmware.on_doorbell

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.adapter = self.adapter.with_incarnation(incarnation)
        former, self.firmware = self.firmware, self._make_firmware()
        self.firmware.take_over(former)

    def _make_firmware(self) -> Firmware:
        """Return firmware without a host; its memory and descriptors are placeholders."""
        return Firmware(self.adapter, self._nic, HostMemory(), Descriptors(), self._settings)


def split_driver(settings: Settings) -> SplitDriver:
    """Return the constructors of a NIC without a host, and of the host library of a process that attaches to it."""

    def nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, settings)

    def host(adapter: Adapter, nic: HostActions, memory: Allocating, descriptors: memoryview, _slot: HostSlot) -> Host:
        return Host(adapter, nic, memory, Descriptors(descriptors))

    return SplitDriver(COUNT * SIZE, COUNT, nic, host)

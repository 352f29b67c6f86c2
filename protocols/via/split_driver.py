"""VIA as a split driver: the NIC with the kernel agent in one process, the host library in another.

The host is not trusted: a descriptor's memory must be registered and lie in the host's memory, whatever the descriptor
contains. When a host dies, its NIC starts a higher incarnation and announces it to its peers, whose connections end.
Without a host, connection requests stay unanswered, and peers resend them.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import Allocating, DmaMemory, HostMemory
from protocols.core.split_memory import HostSlot, OnDoorbell, SharedActions, SingleHostActions, SplitDriver
from protocols.via import codec
from protocols.via.card import Codec
from protocols.via.firmware import Firmware
from protocols.via.host import ViaNic
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import SIZE, Slots


def split_driver(settings: Settings | None = None, codec: Codec = codec) -> SplitDriver:
    """Make VIA's split driver; arguments as for `protocols.via.host.plug`. It supports one host."""
    config = settings if settings is not None else Settings()

    def nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, config, codec)

    def host(
        adapter: Adapter, nic: HostActions, memory: Allocating, descriptors: memoryview, _slot: HostSlot
    ) -> ViaNic:
        return ViaNic(adapter, nic, memory, Slots(config.slots, descriptors), config)

    return SplitDriver(config.slots * SIZE, config.slots, nic, host)


class Nic:
    """A shared NIC (`SharedNic`) whose hosts each get new firmware, which replaces the firmware of the previous host."""

    def __init__(self, adapter: Adapter, nic: SharedActions, settings: Settings, codec: Codec) -> None:
        self.adapter = adapter
        self._nic: Final = SingleHostActions(nic)
        self._settings = settings
        self._codec = codec
        self.firmware = self._vacant_firmware()

    def attach(self, now: int, host: int, memory: DmaMemory, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        slots = Slots(self._settings.slots, descriptors)
        previous = self.firmware
        self.firmware = Firmware(self.adapter, self._nic, memory, slots, self._settings, self._codec)
        self.firmware.loop_through_nic()
        self.firmware.take_over(previous)
        return self.firmware.on_doorbell

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.adapter = self.adapter.with_incarnation(incarnation)
        previous, self.firmware = self.firmware, self._vacant_firmware()
        self.firmware.take_over(previous)

    def _vacant_firmware(self) -> Firmware:
        memory, slots = HostMemory(), Slots(1)
        return Firmware(self.adapter, self._nic, memory, slots, self._settings, self._codec, is_vacant=True)

"""Open-MX as a split driver: the driver in one process, the library in another.

The host is not trusted: a command can access the host's memory only, and the flags of a receive ring affect the slots
of that ring only. When a host dies, its endpoints are closed: the driver notifies their partners, and refuses messages
to them.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import Allocating, DmaMemory, HostMemory
from protocols.core.split_memory import HostSlot, OnDoorbell, SharedActions, SingleHostActions, SplitDriver
from protocols.openmx import codec
from protocols.openmx.codec_interface import Codec
from protocols.openmx.counters import Counters
from protocols.openmx.driver_endpoint import Driver
from protocols.openmx.endpoint_memory import COMMAND_SIZE, COMMANDS, DOORBELLS, Commands, OwnCommands, SharedCommands
from protocols.openmx.firmware import Firmware
from protocols.openmx.host import Library
from protocols.openmx.settings import Settings


def split_driver(settings: Settings | None = None, codec: Codec = codec) -> SplitDriver:
    """Make Open-MX's split driver; arguments as for `protocols.openmx.host.plug`. It supports one host."""
    config = settings if settings is not None else Settings()
    drivers: dict[int, Driver] = {}

    def nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, config, codec, drivers)

    def host(
        adapter: Adapter, nic: HostActions, memory: Allocating, descriptors: memoryview, _slot: HostSlot
    ) -> Library:
        return Library(adapter, nic, memory, SharedCommands(descriptors), config, Counters())

    return SplitDriver(COMMANDS * COMMAND_SIZE, DOORBELLS, nic, host)


class Nic:
    """A shared NIC (`SharedNic`) whose hosts each get a new driver, without endpoints."""

    def __init__(
        self, adapter: Adapter, nic: SharedActions, settings: Settings, codec: Codec, drivers: dict[int, Driver]
    ) -> None:
        self.adapter = adapter
        self._drivers: Final = drivers
        self._nic: Final = SingleHostActions(nic)
        self._settings = settings
        self._codec = codec
        self._counters = Counters()
        self.firmware = self._new_driver(HostMemory(), OwnCommands())

    def attach(self, now: int, host: int, memory: DmaMemory, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        previous = self.firmware
        self.firmware = self._new_driver(memory, SharedCommands(descriptors))
        self.firmware.take_over(now, previous)
        return self.firmware.on_doorbell

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.adapter = self.adapter.with_incarnation(incarnation)
        previous, self.firmware = self.firmware, self._new_driver(HostMemory(), OwnCommands())
        self.firmware.take_over(now, previous)

    def _new_driver(self, memory: DmaMemory, commands: Commands) -> Firmware:
        return Firmware(
            self.adapter, self._nic, memory, commands, self._settings, self._codec, self._counters, self._drivers
        )

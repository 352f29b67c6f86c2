"""Open-MX as a split driver: the driver, and a process with the library.

The host is not trusted: a command names memory of its own or none, whatever it contains, and a receive ring's flags decide
only about its own slots. The driver of a host that has died has no open endpoints: it tells their partners so, and refuses
what comes for them.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import Allocating, HostMemory, Reachable
from protocols.core.split_memory import HostSlot, OnDoorbell, OneHost, SharedActions, SplitDriver
from protocols.openmx import codec
from protocols.openmx.codec_interface import Codec
from protocols.openmx.counters import Counters
from protocols.openmx.endpoint_memory import COMMAND_SIZE, COMMANDS, DOORBELLS, Commands, OwnCommands, SharedCommands
from protocols.openmx.firmware import Firmware
from protocols.openmx.host import Library
from protocols.openmx.settings import Settings


def split_driver(settings: Settings | None = None, codec: Codec = codec) -> SplitDriver:
    """Make Open-MX's split driver; arguments as for `protocols.openmx.host.plug`. It has one host."""
    own = settings if settings is not None else Settings()

    def nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, own, codec)

    def host(
        adapter: Adapter, nic: HostActions, memory: Allocating, descriptors: memoryview, _place: HostSlot
    ) -> Library:
        return Library(adapter, nic, memory, SharedCommands(descriptors), own, Counters())

    return SplitDriver(COMMANDS * COMMAND_SIZE, DOORBELLS, nic, host)


class Nic:
    """Implements `SharedNic`: each host gets a new driver, without endpoints."""

    def __init__(self, adapter: Adapter, nic: SharedActions, settings: Settings, codec: Codec) -> None:
        self.adapter = adapter
        self._nic: Final = OneHost(nic)
        self._settings = settings
        self._codec = codec
        self._counters = Counters()
        self.firmware = self._driver(HostMemory(), OwnCommands())

    def attach(self, now: int, host: int, memory: Reachable, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        former = self.firmware
        self.firmware = self._driver(memory, SharedCommands(descriptors))
        self.firmware.succeed(now, former)
        return self.firmware.on_doorbell

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.adapter = self.adapter.of_incarnation(incarnation)
        former, self.firmware = self.firmware, self._driver(HostMemory(), OwnCommands())
        self.firmware.succeed(now, former)

    def _driver(self, memory: Reachable, commands: Commands) -> Firmware:
        made = Firmware(self.adapter, self._nic, memory, commands, self._settings, self._codec, self._counters)
        made.loop_outside()
        return made

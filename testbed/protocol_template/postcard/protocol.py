"""The entry point "postcard" in the group "testbed.protocols"."""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.core.protocol import Configurable, Protocol
from protocols.mpi.device import Device

from .codec import ETHERTYPE
from .firmware import Firmware
from .host import Host
from .settings import Settings


def plug(settings: Settings) -> Plug:
    """Return what makes a NIC's firmware and its host library."""

    def make(adapter: Adapter, nic: Nic) -> Agent:
        firmware = Firmware(adapter, nic, settings)
        return Agent(firmware, Host(adapter, nic, firmware))

    return make


PROTOCOL: Final = Protocol(plug(Settings()), ETHERTYPE, Device, configurable=Configurable(Settings, plug))

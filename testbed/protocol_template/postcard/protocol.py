"""The entry point "postcard" in the group "testbed.protocols"."""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.core.memory import HostMemory
from protocols.core.protocol import Configurable, Protocol
from protocols.mpi.device import Device

from .codec import ETHERTYPE
from .descriptors import Descriptors
from .firmware import Firmware
from .host import Host
from .settings import Settings
from .split_driver import split_driver


def plug(settings: Settings) -> Plug:
    """Return the constructor of a NIC's firmware and its host library."""

    def make(adapter: Adapter, nic: Nic) -> Agent:
        memory, descriptors = HostMemory(), Descriptors()
        firmware = Firmware(adapter, nic, memory, descriptors, settings)
        return Agent(firmware, Host(adapter, nic, memory, descriptors))

    return make


def device(host: Host) -> Device:
    """Create MPI's device on a node's host library."""
    host.begin()
    return Device(host)


PROTOCOL: Final = Protocol(
    plug(Settings()),
    ETHERTYPE,
    device,
    split_driver=split_driver(Settings()),
    configurable=Configurable(Settings, plug),
)

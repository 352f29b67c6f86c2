"""Factory of AM-II's NICs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields, replace
from typing import Literal

from protocols.am2.firmware import Firmware
from protocols.am2.host.library import ActiveMessages
from protocols.am2.nic_memory import NicMemory
from protocols.am2.receiver import Witness
from protocols.am2.settings import Settings
from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.myrinet.mapper.settings import Settings as MapperSettings

_MAPPING = MapperSettings()


@dataclass(frozen=True, slots=True)
class Configuration(Settings):
    """Settings of a run. watch: interval of the mapper's checks (see its settings); the leading mapper is considered lost
    after ten of them. mapper: "firmware": in each NIC; "daemon": each node's program runs `host.mapper_daemon`."""

    watch: int = _MAPPING.watch
    mapper: Literal["firmware", "daemon"] = "firmware"


def configured(configuration: Configuration) -> Plug:
    """Make AM-II's plug from the settings of a run."""
    settings = Settings(**{setting.name: getattr(configuration, setting.name) for setting in fields(Settings)})
    if configuration.mapper == "daemon":
        return plug(settings, mapping=None)
    watch = configuration.watch
    return plug(settings, mapping=replace(_MAPPING, watch=watch, patience=max(_MAPPING.patience, 10 * watch)))


def plug(
    settings: Settings | None = None, *, mapping: MapperSettings | None = _MAPPING, witness: Witness | None = None
) -> Plug:
    """Make AM-II's plug. mapping: settings of the mapper that each NIC has on a source-routed network; None: no mapper,
    the firmware's user installs routes. witness: called for every delivered message, at the NIC that delivers it."""

    def build(adapter: Adapter, nic: Nic) -> Agent:
        own = settings if settings is not None else Settings()
        memory = NicMemory(own.frames)
        firmware = Firmware(adapter, nic, memory, own, mapping, witness)
        return Agent(firmware, ActiveMessages(adapter, nic, memory, firmware.settings))

    return build


_FRAMES = ("protocols.am2.frames", "protocols.myrinet.mapper.frames", "protocols.myrinet.frames")


def plug_by_scapy() -> Plug:
    """Make AM-II's plug on Scapy. Imported on demand, since importing Scapy is slow."""
    by_scapy = importlib.import_module("protocols.core.scapy_codec").by_scapy
    made: Plug = by_scapy(plug(), *map(importlib.import_module, _FRAMES))
    return made

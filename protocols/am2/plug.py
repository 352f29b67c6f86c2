"""AM-II's plug: the factory of a node's firmware and host library."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

from protocols.am2.firmware import Firmware
from protocols.am2.host.library import ActiveMessages
from protocols.am2.nic_memory import NicMemory
from protocols.am2.receiver import DeliveryCallback
from protocols.am2.settings import Settings
from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.myrinet.mapper.settings import Settings as MapperSettings

_MAPPER_SETTINGS = MapperSettings()


@dataclass(frozen=True, slots=True)
class Configuration(Settings):
    """Settings of a run. mapper: "firmware": the mapper is a part of each NIC; "daemon": each node's program runs
    `host.mapper_daemon`. watch: nanoseconds between the checks of the map by a mapper in the firmware. The mappers'
    setting `patience` follows from it: the leading mapper is considered down after max(1 s, 10 × watch) without a frame
    from it. A daemon does not use `watch`."""

    watch: int = _MAPPER_SETTINGS.watch
    mapper: Literal["firmware", "daemon"] = "firmware"


def configured_plug(configuration: Configuration) -> Plug:
    """Make AM-II's plug from the settings of a run. Raises ValueError for an invalid `watch`."""
    settings = Settings(**{setting.name: getattr(configuration, setting.name) for setting in fields(Settings)})
    if configuration.mapper == "daemon":
        return plug(settings, mapper_settings=None)
    watch = configuration.watch
    return plug(
        settings,
        mapper_settings=replace(_MAPPER_SETTINGS, watch=watch, patience=max(_MAPPER_SETTINGS.patience, 10 * watch)),
    )


def plug(
    settings: Settings | None = None,
    *,
    mapper_settings: MapperSettings | None = _MAPPER_SETTINGS,
    on_delivery: DeliveryCallback | None = None,
) -> Plug:
    """Make AM-II's plug. mapper_settings: settings of the mapper that each NIC has on a source-routed network; None: no
    mapper; routes come from `Firmware.install` or a mapper daemon. on_delivery: called for each message that a NIC
    delivers."""

    def build(adapter: Adapter, nic: Nic) -> Agent:
        nic_settings = settings if settings is not None else Settings()
        memory = NicMemory(nic_settings.frames)
        firmware = Firmware(adapter, nic, memory, nic_settings, mapper_settings, on_delivery)
        return Agent(firmware, ActiveMessages(adapter, nic, memory, firmware.settings))

    return build


_FRAME_MODULES = ("protocols.am2.frames", "protocols.myrinet.mapper.frames", "protocols.myrinet.frames")


def scapy_plug() -> Plug:
    """Make AM-II's plug with frames built and parsed by Scapy. Scapy is imported on demand, since its import is
    slow."""
    by_scapy: Callable[..., Plug] = importlib.import_module("protocols.core.scapy_codec").by_scapy
    return by_scapy(plug(), *map(importlib.import_module, _FRAME_MODULES))

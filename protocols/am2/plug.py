"""AM-II's NICs, for whatever builds them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from protocols.am2.firmware import Firmware
from protocols.am2.host.library import ActiveMessages
from protocols.am2.mapper.settings import Settings as MapperSettings
from protocols.am2.nic_memory import NicMemory
from protocols.am2.receiver import Witness
from protocols.am2.settings import Settings
from protocols.core.firmware import Adapter, Agent, Nic, Plug

_MAPPING = MapperSettings()


@dataclass(frozen=True, slots=True)
class Configuration(Settings):
    """Of a run. watch: of the mapper (see its settings); its leader is missed after ten of them."""

    watch: int = _MAPPING.watch


def configured(configuration: Configuration) -> Plug:
    """As `plug`, by what can be said of a run."""
    settings = Settings(**{one.name: getattr(configuration, one.name) for one in fields(Settings)})
    watch = configuration.watch
    return plug(settings, mapping=replace(_MAPPING, watch=watch, patience=max(_MAPPING.patience, 10 * watch)))


def plug(
    settings: Settings | None = None, *, mapping: MapperSettings | None = _MAPPING, witness: Witness | None = None
) -> Plug:
    """mapping: of the mapper that each NIC has on a network with source routes; None: there is none, and whoever has the
    firmware gives it routes. witness: is told of every message that is delivered, at the NIC where that happens."""

    def build(adapter: Adapter, nic: Nic) -> Agent:
        own = settings if settings is not None else Settings()
        memory = NicMemory(own.frames)
        firmware = Firmware(adapter, nic, memory, own, mapping, witness)
        return Agent(firmware, ActiveMessages(adapter, nic, memory, firmware.settings))

    return build

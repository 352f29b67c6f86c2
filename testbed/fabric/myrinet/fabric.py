"""Myrinet as a registered fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from testbed.fabric.interface import OnDrop
from testbed.fabric.myrinet.network import Network
from testbed.fabric.myrinet.settings import USUAL, Settings
from testbed.spec.kinds import MYRINET, Kind


@dataclass(frozen=True, slots=True)
class Myrinet:
    """Myrinet with these settings of its hardware. Implements `fabric.interface.Fabric`."""

    settings: Settings = USUAL
    kind: ClassVar[Kind] = MYRINET

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Network:
        """Make an empty network. slowed: the factor by which its hardware is slower."""
        return Network(self.settings.slowed(slowed), on_drop)


FABRIC: Final = Myrinet()

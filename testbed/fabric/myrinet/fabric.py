"""Myrinet as a registered fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from testbed.fabric.interface import OnDrop, Table
from testbed.fabric.myrinet.network import Network
from testbed.fabric.myrinet.settings import USUAL, Settings
from testbed.spec.kinds import MYRINET, Kind
from testbed.spec.layout import Layout, Switch


@dataclass(frozen=True, slots=True)
class Myrinet:
    """Myrinet with these settings of its hardware. Implements `fabric.interface.Fabric`."""

    settings: Settings = USUAL
    kind: ClassVar[Kind] = MYRINET

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Network:
        """Make an empty network. slowed: the factor by which its hardware is slower."""
        return Network(self.settings.slowed(slowed), on_drop)

    def table(self, layout: Layout, switch: Switch) -> Table:  # noqa: ARG002
        """Return nothing: its switches go by the routes of frames."""
        return {}


FABRIC: Final = Myrinet()

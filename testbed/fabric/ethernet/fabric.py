"""Ethernet as a registered fabric, and the tables of its switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from testbed.fabric.ethernet.ethernet_switch import STATIC, TREE
from testbed.fabric.ethernet.network import Network
from testbed.fabric.interface import OnDrop, Table
from testbed.spec.kinds import ETHERNET, Kind
from testbed.spec.layout import Layout, Switch


@dataclass(frozen=True, slots=True)
class Ethernet:
    """The Ethernet fabric. Implements `fabric.interface.Fabric`."""

    kind: ClassVar[Kind] = ETHERNET

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Network:  # noqa: ARG002
        """Make an empty network. Its switches take no time and drop nothing, so that both arguments are unused."""
        return Network()

    def table(self, layout: Layout, switch: Switch) -> Table:  # noqa: ARG002
        """Return a switch's table, see `ethernet_switch.Switch.install`."""
        if switch.learns:
            return {}
        return {**switch.forwarding, **{f"{TREE}{port}": port for port in switch.tree}, STATIC: 1}


FABRIC: Final = Ethernet()

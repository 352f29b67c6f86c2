"""The registered fabrics, by kind of switch."""

from __future__ import annotations

from typing import cast

from testbed import registry
from testbed.fabric.interface import Fabric, Table
from testbed.spec.kinds import DEFAULT, registered
from testbed.spec.layout import Layout


def fabric(kind: str) -> Fabric:
    """The fabric of a kind of switch.

    Raises NotFoundError if no installed package provides it, TestbedError if it cannot be imported or is no fabric.
    """
    return cast(Fabric, registered(kind)[0])


def tables(layout: Layout) -> dict[str, Table]:
    """The tables of a layout's modelled switches, empty ones left out. Raises as `fabric`."""
    modelled = layout.simulated_switches()
    by_switch = {
        switch.name: fabric(switch.kind).table(layout, switch) for switch in layout.switches if switch.name in modelled
    }
    return {name: table for name, table in by_switch.items() if table}


def names() -> list[str]:
    """All available kinds of switches, the default one first."""
    return sorted(registry.offered(registry.FABRICS), key=DEFAULT.name.__ne__)

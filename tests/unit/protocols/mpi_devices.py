"""MPI ranks on every kind of device: EMP, whose NICs match messages; AM-II, VIA and Open-MX, whose NICs do not; and one
without a NIC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocols.am2.plug import plug
from protocols.am2.settings import SECOND, Settings
from protocols.mpi import Comm, am2
from protocols.mpi.openmx import device as openmx_device
from protocols.mpi.via import device as via_device
from protocols.openmx import host as openmx
from protocols.via import host as via
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.host_programs import Program
from tests.unit.protocols.list_wires import Wires
from tests.unit.protocols.nicless_endpoints import LibraryRanks

RanksOf = Callable[..., Ranks]
"""Constructor of ranks. Arguments: their number; mtu: MTU of their links."""


class SettlingRanks(Ranks):
    """Ranks whose NICs acknowledge messages some time after the programs have ended."""

    def is_idle(self) -> bool:
        """Let the acknowledgements that no program awaits arrive; return whether all ranks are idle."""
        self.wires.elapse(10 * SECOND)
        return super().is_idle()


class Am2Ranks(SettlingRanks):
    """Ranks on AM-II's NICs."""

    def __init__(self, count: int = 2, settings: Settings | None = None, mtu: int = 1500) -> None:
        self.wires = Wires(plug(settings), count, mtu)
        self.devices = [am2.device(agent.host) for agent in self.wires.agents]  # type: ignore[arg-type]
        self.world = self.communicators(0)


class ViaRanks(SettlingRanks):
    """Ranks on VIA's NICs."""

    def __init__(self, count: int = 2, settings: via.Settings | None = None, mtu: int = 1500) -> None:
        self.wires = Wires(via.plug(settings), count, mtu)
        self.devices = [via_device(agent.host) for agent in self.wires.agents]  # type: ignore[arg-type]
        self.world = self.communicators(0)


class OpenMxRanks(SettlingRanks):
    """Ranks on Open-MX's NICs; its library matches messages."""

    def __init__(self, count: int = 2, settings: openmx.Settings | None = None, mtu: int = 1500) -> None:
        self.wires = Wires(openmx.plug(settings), count, mtu)
        self.devices = [openmx_device(agent.host) for agent in self.wires.agents]  # type: ignore[arg-type]
        self.world = self.communicators(0)


def run_program(size: int, program: Callable[[Comm], Program[Any]], ranks_of: RanksOf = LibraryRanks) -> list[Any]:
    """Run a program on each of `size` ranks; return their results. The ranks must be idle afterwards."""
    ranks = ranks_of(size)
    results: list[Any] = ranks.run(*[program] * size)
    assert ranks.is_idle()
    return results


on_every_device = pytest.mark.parametrize(
    "ranks_of",
    [Ranks, Am2Ranks, ViaRanks, OpenMxRanks, LibraryRanks],
    ids=["emp", "am2", "via", "openmx", "by library"],
)

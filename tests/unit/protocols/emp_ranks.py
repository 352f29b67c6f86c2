"""MPI's ranks on EMP's NICs, joined by lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from protocols.emp.host import plug
from protocols.emp.settings import Settings
from protocols.mpi import Comm, emp
from testbed.mpi.mpi_programs import Program as BlockingProgram
from tests.unit.protocols.host_programs import Program, run
from tests.unit.protocols.list_wires import Wires

T = TypeVar("T")


class Ranks:
    """Ranks on EMP's NICs: `devices` and communicators `world`, in the order of ranks."""

    def __init__(self, count: int = 2, settings: Settings | None = None, mtu: int = 1500) -> None:
        self.wires = Wires(plug(settings), count, mtu)
        self.devices = [emp.device(agent.host) for agent in self.wires.agents]
        self.world = self.communicators(0)

    def communicators(self, context: int) -> list[Comm]:
        """Return each rank's view of one communicator."""
        return [Comm(device, context) for device in self.devices]

    def run(self, *programs: Callable[[Comm], Program[T]], deliver: Callable[[], object] | None = None) -> list[T]:
        """Run a program on each rank; return their results."""
        return run(
            self.wires, *(program(comm) for program, comm in zip(programs, self.world, strict=True)), deliver=deliver
        )

    def is_idle(self) -> bool:
        """Return whether no descriptor is in use and no rank waits."""
        return not any(
            agent.host.pending_work() or agent.firmware.pending_work() or device.pending_work()
            for agent, device in zip(self.wires.agents, self.devices, strict=True)
        )


def run_blocking(ranks: Ranks, *functions: Callable[[], object]) -> list[object]:
    """Run a function on each rank as a blocking program; return their results."""

    def wrap(function: Callable[[], object]) -> Callable[[Comm], object]:
        return lambda world: BlockingProgram(function, world, lambda: ranks.wires.now, f"n{world.rank + 1}").drive()

    return ranks.run(*map(wrap, functions))  # type: ignore[arg-type]

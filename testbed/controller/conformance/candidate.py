"""The protocol to check, and runs of programs on its NICs in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from protocols.core.protocol import Protocol
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import MPIError
from testbed import packages
from testbed.controller.conformance.network_faults import SECOND
from testbed.controller.conformance.trials import Violation, errors_as_violations
from testbed.engine.tracebacks import program_traceback
from testbed.errors import TestbedError, UnsupportedError
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.model import Description

TIMEOUT: Final = 20 * SECOND
"""Virtual time after which the programs are stuck, nanoseconds."""
REST: Final = 20 * SECOND
"""Virtual time in which the network becomes idle after the programs, also if an acknowledgement is lost several times, and
in which needless timers expire; nanoseconds."""

Program = Callable[[Device, SimNode], Coroutine[Any, Any, None]]
"""Program of a rank. Raises Violation for an error of the protocol."""
NetworkChange = Callable[[Simulation], object]
"""A change of the network while programs run."""


class NotApplicableError(Exception):
    """A check does not apply to this protocol, or cannot run on this machine; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A protocol to check. max_message_size: maximum message size of its MPI device, bytes."""

    name: str
    protocol: Protocol
    max_message_size: int

    def sizes(self, *sizes: int) -> list[int]:
        """Return those of these message sizes that the protocol can send."""
        return [size for size in sizes if size <= self.max_message_size]


@cache
def candidate(name: str) -> Candidate:
    """Return a registered protocol. Raises NotFoundError, UnsupportedError for a protocol without firmware, and TestbedError
    with a traceback if its NIC or device cannot be built."""
    protocol = packages.protocol(name)
    if protocol.uses_kernel_sockets:
        raise UnsupportedError(f"{name} is a kernel protocol, without firmware to check")
    try:
        with Simulation(Description.back_to_back(), protocol.plug) as simulation:
            device = protocol.device(next(iter(simulation.nodes.values())).endpoint)
            return Candidate(name, protocol, device.max_message_size)
    except Exception as error:  # a package's code may raise anything
        raise TestbedError(f"NICs of protocol {name} cannot be built:\n{program_traceback(error)}") from error


@errors_as_violations()
def converse(
    candidate: Candidate, description: Description, programs: Sequence[Program], *, change: NetworkChange | None = None
) -> None:
    """Run one program on each node of a cluster, and check that no operation or timer is left.

    change: called when the programs have begun. Raises Violation.
    """
    with Simulation(description, candidate.protocol.plug, seed=0) as simulation:
        nodes = list(simulation.nodes.values())
        devices = [candidate.protocol.device(node.endpoint) for node in nodes]
        for node, device, program in zip(nodes, devices, programs, strict=True):
            simulation.spawn(node.name, _run_program, device, program)
        if change is not None:
            change(simulation)
        try:
            simulation.run(timeout=TIMEOUT)
        except StalledError as error:
            raise Violation(str(error)) from error
        simulation.run_until(simulation.now() + REST)
        for node, device in zip(nodes, devices, strict=True):
            if pending := [*device.pending_work(), *node.pending_work()]:
                raise Violation(
                    f"{node.name}: operations are pending after the programs have ended: {'; '.join(pending)}"
                )
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: no operation is pending, but the firmware's deadline is not None")


async def _run_program(_endpoint: object, node: SimNode, device: Device, program: Program) -> None:
    try:
        await device.connect()
        await program(device, node)
    except MPIError as error:
        raise Violation(f"{node.name}: a transfer failed: {error}") from error

"""The protocol that is checked, and conversations of its NICs in the simulation."""

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
from testbed.controller.conformance.trials import Violation, judged
from testbed.engine.tracebacks import program_traceback
from testbed.errors import TestbedError, UnsupportedError
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.model import Description

TIMEOUT: Final = 20 * SECOND
"""Virtual time after which a conversation is taken to have come to a halt."""
REST: Final = 2 * SECOND
"""Virtual time after a conversation, in which timers without a purpose run out."""

Program = Callable[[Device, SimNode], Coroutine[Any, Any, None]]
"""Program of a rank. It raises Violation where the protocol is wrong."""
Act = Callable[[Simulation], object]
"""A change of the network beside the programs."""


class NotApplicableError(Exception):
    """A check says nothing about this protocol, or cannot be made here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A protocol. max_message_size: bytes, of its MPI device."""

    name: str
    protocol: Protocol
    max_message_size: int

    def sizes(self, *wanted: int) -> list[int]:
        """Return these sizes of messages, as far as the protocol can send them."""
        return [size for size in wanted if size <= self.max_message_size]


@cache
def candidate(name: str) -> Candidate:
    """Return a registered protocol. Raises NotFoundError, UnsupportedError for one without firmware, and TestbedError with a
    traceback where no NIC, or no device on it, can be made."""
    protocol = packages.protocol(name)
    if protocol.uses_kernel_sockets:
        raise UnsupportedError(f"{name} is the kernel's own protocol: it has no firmware that could be checked")
    try:
        with Simulation(Description.back_to_back(), protocol.plug) as simulation:
            device = protocol.device(next(iter(simulation.nodes.values())).endpoint)
            return Candidate(name, protocol, device.max_message_size)
    except Exception as error:  # a package's code may raise anything
        raise TestbedError(f"no NIC of protocol {name} can be made:\n{program_traceback(error)}") from error


@judged()
def converse(
    candidate: Candidate, description: Description, programs: Sequence[Program], *, act: Act | None = None
) -> None:
    """Run one program on each node of a cluster, and then check that nothing is left under way.

    act: is called once the programs have begun. Raises Violation.
    """
    with Simulation(description, candidate.protocol.plug, seed=0) as simulation:
        nodes = list(simulation.nodes.values())
        devices = [candidate.protocol.device(node.endpoint) for node in nodes]
        for node, device, program in zip(nodes, devices, programs, strict=True):
            simulation.spawn(node.name, _carry_out, device, program)
        if act is not None:
            act(simulation)
        try:
            simulation.run(timeout=TIMEOUT)
        except StalledError as error:
            raise Violation(str(error)) from error
        simulation.run_until(simulation.now() + REST)
        for node, device in zip(nodes, devices, strict=True):
            if left := [*device.waiting(), *node.waiting()]:
                raise Violation(f"the programs have ended, and there is left: {'; '.join(left)}")
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: nothing is under way, and its deadline is not None")


async def _carry_out(_endpoint: object, node: SimNode, device: Device, program: Program) -> None:
    try:
        await device.connect()
        await program(device, node)
    except MPIError as error:
        raise Violation(f"{node.name}: a transfer has failed: {error}") from error

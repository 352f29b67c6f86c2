"""Orders of a run, which node processes inherit when they are forked: nodes, NICs and programs. Also the faults that node
processes of a dilated run apply to the model of NIC and cores."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from protocols.core.firmware import Adapter, Plug
from protocols.core.profile import Profile
from protocols.core.protocol import Steering
from protocols.core.split_memory import SplitDriver
from testbed.engine.loop import Loop
from testbed.engine.server import Core
from testbed.engine.tasks import Task
from testbed.engine.waitables import Awaited
from testbed.kernel.offloads import Offloads
from testbed.kernel.setns import NodeContext
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.spec.layout import Node
from testbed.spec.placement import Rank

Program = Callable[..., Coroutine[Awaited | int, None, object]]
"""A host program: ``async def program(endpoint, node)``. endpoint: endpoint of the protocol's library (`Agent.host`). node:
the program's `ProgramNode`. The program's result must be plain data of at most 128 KiB, which is returned to the starting
process."""


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A node's computer in a dilated run. layout: layout of the node, with its cores. profile: costs of host and NIC. ranks:
    ranks on this node. adapters: adapters of the NIC's functions, one for each rank."""

    layout: Node
    profile: Profile
    ranks: tuple[Rank, ...]
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """Placement of a rank.

    name: name of the rank. node_context: namespaces and environment of its node. device: interface of the NIC. adapter:
    address and peers of the rank. cpu: processor to which its process is bound, or -1. node: name of the node, if it differs
    from the rank's. functions: adapters of all functions of a shared NIC, of which the rank attaches to number `function`;
    empty for an inline NIC. model: model of the node in a dilated run, in which one process with one placement runs all
    ranks of the node.
    """

    name: str
    node_context: NodeContext
    device: str
    adapter: Adapter
    cpu: int = -1
    node: str = ""
    function: int = 0
    functions: tuple[Adapter, ...] = ()
    model: NodeModel | None = None

    @property
    def node_name(self) -> str:
        """The node's name."""
        return self.node or self.name


class Model(Protocol):
    """A rank's part of the model of its node, in a dilated run. core: core to which the rank is bound."""

    core: Core

    def program_time(self) -> int:
        """Return the current time as the program sees it, nanoseconds: the time at which the core has finished the
        program's posts to the NIC."""
        ...

    async def compute(self, nanoseconds: int) -> None:
        """Occupy the core for this time."""
        ...


def _ignore(_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """A host program's view of its node. name: name of the rank. number: number of the rank. numbers: rank name ->
    number. loop: clock and tasks, ``loop.now()``, ``await loop.sleep(ns)``, ``loop.spawn(...)``. model: the rank's
    model in a dilated run. starts: how often the node has been started in this run. adopt: called with each task that
    the program spawns. crash_callbacks: called with the number of each rank that crashes, and whether it will
    restart."""

    name: str
    number: int
    numbers: dict[str, int]
    loop: Loop
    model: Model | None = None
    starts: int = 1
    adopt: Callable[[Task[object]], object] = _ignore
    crash_callbacks: list[Callable[[int, bool], object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Dilation:
    """Time dilation of a run. factor: nanoseconds of this machine for one of the model. profile: costs of NICs and hosts.
    profiles: by node, the costs of nodes for which `profile` does not hold. steering: see
    `testbed.sim.sim_host.Prices`."""

    factor: int
    profile: Profile
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    steering: Steering = field(default_factory=dict)

    def profile_of(self, node: str) -> Profile:
        """Return the profile of a node."""
        return self.profiles.get(node, self.profile)


Offloading = Callable[[], AbstractContextManager[Mapping[str, Offloads]]]
"""Returns a context manager, which provides by node the offloads that the node's NIC may have after the run, when no
firmware is emulated on it. They depend on the links at that time, and must be switched on within the context."""


def _no_offloads() -> AbstractContextManager[Mapping[str, Offloads]]:
    return nullcontext({})


@dataclass(frozen=True, slots=True)
class RunOrders:
    """Orders for the processes of one run.

    plug: makes the protocol's firmware and host library. ethertype: EtherType of its frames; 0: a protocol of the kernel.
    placements: placements of the node processes. programs: programs by rank name. numbers: rank name -> number. spin:
    nanoseconds for which the processes poll for a frame before sleeping; 0: see `patience`. offloading: called when the
    processes have ended. dilation: time dilation of a dilated run. shared: split driver of the shared NICs, which run in
    agents outside the node processes; see `NodePlacement.functions`. mtus: if MTUs differ, MAC address -> a rank's name and
    the MTU of its NIC; else empty. queues: receive queues of shared NICs.
    """

    plug: Plug
    ethertype: int
    placements: tuple[NodePlacement, ...]
    programs: dict[str, Program]
    numbers: dict[str, int] = field(default_factory=dict)
    spin: int = 0
    offloading: Offloading = _no_offloads
    dilation: Dilation | None = None
    shared: SplitDriver | None = None
    mtus: Mapping[bytes, tuple[str, int]] = field(default_factory=dict)
    queues: ReceiveQueues = field(default_factory=ReceiveQueues)


@dataclass(frozen=True, slots=True)
class PauseNic:
    """Pause the NIC until `ResumeNic`. until: nanoseconds of model time until which the host's cores are paused, too; None:
    they are not paused."""

    until: int | None


@dataclass(frozen=True, slots=True)
class ResumeNic:
    """Resume the NIC."""


@dataclass(frozen=True, slots=True)
class SlowNic:
    """Slow the NIC down, instead of earlier factors. factor: multiplies the costs of its profile; 1: back to normal."""

    factor: float


@dataclass(frozen=True, slots=True)
class BeginLoad:
    """Start a background load of the host's cores, see `testbed.engine.server.load_cores`."""

    share: float


@dataclass(frozen=True, slots=True)
class EndLoad:
    """End the oldest background load that has this share."""

    share: float


ModelFault: TypeAlias = PauseNic | ResumeNic | SlowNic | BeginLoad | EndLoad

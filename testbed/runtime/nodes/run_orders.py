"""Orders of a run: nodes, NICs and programs, which node processes inherit when they are forked; and faults of the model in a
dilated run, which they apply to NIC and cores."""

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
the program's `ProgramNode`. Its result is plain data, 128 KiB at most, and is returned to the starting process."""


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A node's computer in a dilated run. layout: its cores. profile: its costs. ranks: those on this node. adapters:
    adapters of the NIC's functions, one for each rank."""

    layout: Node
    profile: Profile
    ranks: tuple[Rank, ...]
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """Placement of a rank: its node, the NIC's interface, and its adapter.

    name: the rank's. cpu: the processor that its process is bound to, or -1. node: the node's name, if it differs from the
    rank's. functions: adapters of all functions of a shared NIC, to whose `function` the rank attaches; empty: the NIC is
    inline. model: in a dilated run, in which all ranks of a node are in one process, with one placement.
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
    """A rank's part of the model of its node, in a dilated run. core: the core that the rank is bound to."""

    core: Core

    def program_time(self) -> int:
        """Return the current time as the program sees it, ns: when the core has finished its posts to the NIC."""
        ...

    async def compute(self, nanoseconds: int) -> None:
        """Occupy the core."""
        ...


def _ignore(_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """The node on which a host program runs, for the program. number: the rank. numbers: rank name -> number. loop: with its
    clock and tasks, ``loop.now()``, ``await loop.sleep(ns)``, ``loop.spawn(...)``. model: in a dilated run. starts: how
    often the node has been started in this run. adopt: called with each task that the program spawns. crash_callbacks:
    called with the number of each rank that crashes, and whether it will restart."""

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
    profiles: costs of nodes that differ from it, by node. steering: see `testbed.sim.sim_host.Prices`."""

    factor: int
    profile: Profile
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    steering: Steering = field(default_factory=dict)

    def profile_of(self, node: str) -> Profile:
        """Return the profile of a node."""
        return self.profiles.get(node, self.profile)


Offloading = Callable[[], AbstractContextManager[Mapping[str, Offloads]]]
"""Returns a context with the offloads, by node, that the node's NIC may have after the run, when no firmware is emulated on
it; they depend on the links at that time. The offloads may be switched on within the context."""


def _no_offloads() -> AbstractContextManager[Mapping[str, Offloads]]:
    return nullcontext({})


@dataclass(frozen=True, slots=True)
class RunOrders:
    """Orders for the processes of one run. programs: by rank name. numbers: rank name -> number. spin: nanoseconds that the
    processes poll for a frame before sleeping. offloading: called when they have ended. dilation: dilation of a dilated run.
    shared: split driver of the shared NICs, which run in agents outside the node processes; see `NodePlacement.functions`.
    queues: queues of shared NICs. mtus: MAC address -> a rank's name and its NIC's MTU, if the MTUs differ; else empty.
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
    """Pause NIC and host. until: nanoseconds of model time; None: until `ResumeNic`."""

    until: int | None


@dataclass(frozen=True, slots=True)
class ResumeNic:
    """ResumeNic NIC and host."""


@dataclass(frozen=True, slots=True)
class SlowNic:
    """Slow the NIC down by a factor, relative to its profile; 1 ends it."""

    factor: float


@dataclass(frozen=True, slots=True)
class BeginLoad:
    """Start a background load that takes a share of each core of the host. share: 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class EndLoad:
    """End the oldest background load of this share."""

    share: float


ModelFault: TypeAlias = PauseNic | ResumeNic | SlowNic | BeginLoad | EndLoad

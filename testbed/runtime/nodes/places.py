"""Orders of a run: nodes, NICs and programs, which the node processes get before they begin; and faults of
the model in a dilated run, which they apply to NIC and core."""

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
"""A host program: ``async def program(endpoint, node)``. endpoint: of the protocol's library (`Agent.host`). node: the
program's `ProgramNode`. Its result is plain data, 128 KiB at most, and is returned to the starting process."""


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A node's computer in a dilated run: its cores and their use by ranks, which have the NIC's functions, with their
    adapters. profile: its costs."""

    layout: Node
    profile: Profile
    ranks: tuple[Rank, ...]
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """Where a rank runs: its node, the NIC's interface, and its adapter.

    name: the rank's. cpu: the processor that its process is bound to, or -1. node: where the rank has another name.
    functions: adapters of all functions of the node's NIC, which is shared; the rank attaches to `function`. Empty: the NIC
    is inline. model: in a dilated run, where all ranks of a node are in one process; then this is the node's.
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
    def on(self) -> str:
        """The node's name."""
        return self.node or self.name


class Model(Protocol):
    """A rank's part of the model of its node, in a dilated run. core: the one that the rank is bound to."""

    core: Core

    def reached(self) -> int:
        """Return the time at which the core has finished the program's posts to the NIC."""
        ...

    async def compute(self, nanoseconds: int) -> None:
        """Occupy the core."""
        ...


def _ignore(_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """The node on which a host program runs, for the program. numbers: node name -> number. loop: with its clock and tasks,
    ``loop.now()``, ``await loop.sleep(ns)``, ``loop.spawn(...)``. model: in a dilated run. starts: how often its node has
    been started in this run. adopt: called with each task that the program spawns. departed: functions to call with each
    rank that crashes."""

    name: str
    number: int
    numbers: dict[str, int]
    loop: Loop
    model: Model | None = None
    starts: int = 1
    adopt: Callable[[Task[object]], object] = _ignore
    departed: list[Callable[[int], object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Dilation:
    """Time dilation of a run. factor: nanoseconds of this machine for one of the model. profile: costs of NICs and hosts;
    profiles: by node, of those with others. steering: see `testbed.sim.sim_host.Prices`."""

    factor: int
    profile: Profile
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    steering: Steering = field(default_factory=dict)

    def of(self, node: str) -> Profile:
        return self.profiles.get(node, self.profile)


Offloading = Callable[[], AbstractContextManager[Mapping[str, Offloads]]]
"""Returns a context with the offloads, by node, that its NIC may have after the run, when no firmware is emulated on it;
they depend on the links at that time. They may be switched on within the context."""


def _none() -> AbstractContextManager[Mapping[str, Offloads]]:
    return nullcontext({})


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders for the processes of one run. spin: nanoseconds that they poll for a frame before sleeping. offloading: called
    when they have ended. dilation: of a dilated run. shared: of the shared NICs, which run in agents beside the node
    processes; each place says whether its NIC is. queues: of these. mtus: MAC address -> a rank's name and its NIC's MTU,
    where the MTUs differ.
    """

    plug: Plug
    ethertype: int
    places: tuple[NodePlacement, ...]
    programs: dict[str, Program]
    numbers: dict[str, int] = field(default_factory=dict)
    spin: int = 0
    offloading: Offloading = _none
    dilation: Dilation | None = None
    shared: SplitDriver | None = None
    mtus: Mapping[bytes, tuple[str, int]] = field(default_factory=dict)
    queues: ReceiveQueues = field(default_factory=ReceiveQueues)


@dataclass(frozen=True, slots=True)
class PauseNic:
    """Pause NIC and host. until: a model time; None: until `Resume`."""

    until: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume NIC and host."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """Slow the NIC down by a factor, relative to its profile; 1 ends it."""

    factor: float


@dataclass(frozen=True, slots=True)
class BeginLoad:
    """Begin a background load that takes a share of the host's core."""

    share: float


@dataclass(frozen=True, slots=True)
class EndLoad:
    """End the oldest background load of this share."""

    share: float


ModelFault: TypeAlias = PauseNic | Resume | Slowed | BeginLoad | EndLoad

"""Orders of a run: nodes, NICs and programs, which the node processes get before they begin; and faults of
the model in a dilated run, which they apply to NIC and core."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from protocols.core.firmware import Adapter, Plug
from protocols.core.profile import Profile
from protocols.core.split_memory import SplitDriver
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.engine.waitables import Awaited
from testbed.kernel.offloads import Offloads
from testbed.kernel.setns import NodeContext

Program = Callable[..., Coroutine[Awaited | int, None, object]]
"""A host program: ``async def program(endpoint, node)``. endpoint: of the protocol's library (`Agent.host`). node: the
program's `Here`. Its result is plain data, 128 KiB at most, and is returned to the starting process."""


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """A node, its NIC's interface, and the NIC's adapter. cpu: the processor that its process is bound to, or -1."""

    name: str
    node_context: NodeContext
    device: str
    adapter: Adapter
    cpu: int = -1


class Model(Protocol):
    """Model of a host in a dilated run. core: its only core. posted: when the core has done the posts to the NIC that its
    program has made."""

    core: Server

    @property
    def posted(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """The node on which a host program runs, for the program. numbers: node name -> number. loop: with its clock and tasks,
    ``loop.now()``, ``await loop.sleep(ns)``, ``loop.spawn(...)``. model: in a dilated run. starts: how often its node has
    been started in this run."""

    name: str
    number: int
    numbers: dict[str, int]
    loop: Loop
    model: Model | None = None
    starts: int = 1


@dataclass(frozen=True, slots=True)
class Dilation:
    """Time dilation of a run. factor: nanoseconds of this machine for one of the model. profile: costs of NICs and hosts."""

    factor: int
    profile: Profile


Offloading = Callable[[], AbstractContextManager[Mapping[str, Offloads]]]
"""Returns a context with the offloads, by node, that its NIC may have after the run, when no firmware is emulated on it;
they depend on the links at that time. They may be switched on within the context."""


def _none() -> AbstractContextManager[Mapping[str, Offloads]]:
    return nullcontext({})


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders for the processes of one run. spin: nanoseconds that they poll for a frame before sleeping. offloading: called
    when they have ended. dilation: of a dilated run. shared: of shared NICs, which run in agents beside the node processes.
    mtus: MAC address -> a node's name and its NIC's MTU, where the MTUs differ."""

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


@dataclass(frozen=True, slots=True)
class Stand:
    """NIC and host are paused. until: a model time; None: until `Resume`."""

    until: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """The NIC is resumed."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """The NIC is slower than its profile by a factor; 1 ends it."""

    factor: float


@dataclass(frozen=True, slots=True)
class Burn:
    """A background load takes a share of the host's core."""

    share: float


@dataclass(frozen=True, slots=True)
class Unburn:
    """The oldest background load of this share ends."""

    share: float


ModelFault: TypeAlias = Stand | Resume | Slowed | Burn | Unburn

"""Who runs where: what a node process is told before it begins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from protocols.core.apart import Apart
from protocols.core.firmware import Adapter, Plug
from protocols.core.profile import Profile
from testbed.engine.awaiting import Awaited
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.kernel.entering import Surroundings
from testbed.kernel.offloads import Offloads

Program = Callable[..., Coroutine[Awaited | int, None, object]]
"""A host program: ``async def program(endpoint, node)``. endpoint: what the protocol's library offers (`Agent.host`); node:
the program's `Here`. What it returns goes back to whoever started it: plain data, 128 KiB at most."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node, its NIC's interface, and who that NIC is. cpu: the processor that its process is bound to, or -1."""

    name: str
    surroundings: Surroundings
    device: str
    adapter: Adapter
    cpu: int = -1


class Model(Protocol):
    """What a dilated run knows of a host. core: its one core. posted: when that has done what its program has asked of it
    for the NIC."""

    core: Server

    @property
    def posted(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Here:
    """What a host program knows of where it runs. numbers: node name -> number. loop: its clock, its tasks:
    ``loop.now()``, ``await loop.sleep(ns)``, ``loop.spawn(...)``. model: in a dilated run. starts: how often its
    node has been started in this run."""

    name: str
    number: int
    numbers: dict[str, int]
    loop: Loop
    model: Model | None = None
    starts: int = 1


@dataclass(frozen=True, slots=True)
class Dilation:
    """How a run is slowed. factor: nanoseconds of this machine for one of the model's. profile: what NICs and hosts cost."""

    factor: int
    profile: Profile


Offloading = Callable[[], AbstractContextManager[Mapping[str, Offloads]]]
"""Gives, by node, the offloads that its NIC may have while no firmware is emulated on it, as it is when the run is over:
links change. They may be switched on within its block."""


def _none() -> AbstractContextManager[Mapping[str, Offloads]]:
    return nullcontext({})


@dataclass(frozen=True, slots=True)
class Orders:
    """What the processes of one run are to do. spin: nanoseconds that they look for a frame before they sleep. offloading:
    asked when they have ended. dilation: of a dilated run. shared: the NICs are, in processes of their own beside the
    nodes'."""

    plug: Plug
    ethertype: int
    places: tuple[Place, ...]
    programs: dict[str, Program]
    numbers: dict[str, int] = field(default_factory=dict)
    spin: int = 0
    offloading: Offloading = _none
    dilation: Dilation | None = None
    shared: Apart | None = None

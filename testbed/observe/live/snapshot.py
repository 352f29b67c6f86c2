"""What a running cluster looks like at one moment: plain data, from which a screen, a document or a picture can be made.

Rates are per second over the time since the look before; of the first look they are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.observe.telling import Told


@dataclass(frozen=True, slots=True)
class Program:
    """A process in a node. cpu: of one processor, 0.5 is half; memory: bytes that are resident."""

    pid: int
    name: str
    cpu: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link: frames and bytes since it was made, what was dropped by cause, and what is in force.

    Causes: those of `wire.counters`, "kernel", and "queue" where a queueing discipline of the kernel's dropped. met: what
    else was done to frames, as counted there. rate in frames/s, bits in bit/s, drop_rate in frames/s. declared and injected:
    in words, empty for nothing.
    """

    frames: int = 0
    bytes: int = 0
    rate: float = 0.0
    bits: float = 0.0
    dropped: Mapping[str, int] = field(default_factory=dict)
    drop_rate: float = 0.0
    met: Mapping[str, int] = field(default_factory=dict)
    declared: str = ""
    injected: str = ""

    @property
    def drops(self) -> int:
        """For whatever cause."""
        return sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class Link:
    """forward is from a to b. state: "up", "down" or "GONE". datapath: who carries it."""

    name: str
    a: str
    b: str
    state: str
    datapath: str
    forward: Direction = Direction()
    backward: Direction = Direction()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Nic:
    """A node's interface. out and back: the directions of its link, from here and to here. agent: what the firmware that is
    shared on it has counted, by name; empty where there is none."""

    name: str
    mac: str
    addresses: tuple[str, ...]
    link: str
    out: Direction = Direction()
    back: Direction = Direction()
    agent: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """state: "up" or "GONE"."""

    name: str
    state: str
    nics: tuple[Nic, ...] = ()
    programs: tuple[Program, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """What is injected. seconds_left: until it heals by itself; None: never."""

    number: int
    what: str
    links: tuple[str, ...] = ()
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """time: nanoseconds of the epoch. age: seconds since the cluster came up. span: seconds that the rates are of. summary:
    "4 nodes, 1 switch, 4 links". warning: what is wrong with the cluster as a whole, a sentence. carriers: the processes
    beside it, such as its relay's. events: the last ones, the oldest first."""

    cluster: str
    origin: str
    time: int
    age: float
    span: float
    summary: str
    phase: str
    warning: str = ""
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    faults: tuple[Fault, ...] = ()
    carriers: tuple[Program, ...] = ()
    events: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """There is nothing to look at. why: a sentence."""

    why: str

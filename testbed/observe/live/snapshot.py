"""State of a running cluster at one time: plain data for a screen, a document or a picture.

Rates cover the time since the previous snapshot; in the first snapshot they are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.observe.format.event_format import FormattedEvent


@dataclass(frozen=True, slots=True)
class Program:
    """A process in a node. cpu: processor use; 0.5 is half a processor. memory: resident bytes."""

    pid: int
    name: str
    cpu: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link: frames and bytes since its creation, drops by cause, and impairments in force.

    rate: frames/s. bits: bit/s. dropped: frames by cause, as in `fates.fate_counters`, and "kernel"; "queue" includes drops
    by queueing disciplines of the kernel. drop_rate: frames/s. fates: frames by fate other than drops, as in
    `fates.fate_counters`. declared, injected: impairments as text; empty: none.
    """

    frames: int = 0
    bytes: int = 0
    rate: float = 0.0
    bits: float = 0.0
    dropped: Mapping[str, int] = field(default_factory=dict)
    drop_rate: float = 0.0
    fates: Mapping[str, int] = field(default_factory=dict)
    declared: str = ""
    injected: str = ""

    @property
    def drops(self) -> int:
        """Number of dropped frames of all causes."""
        return sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class Link:
    """A link; forward is from a to b. state: "up", "down" or "GONE". datapath: name of the mechanism that forwards its
    frames."""

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
    """A node's interface. out, back: directions of its link, from and to the interface. agent: counters of the agent of a
    shared NIC, by name; empty if the NIC is not shared."""

    name: str
    mac: str
    addresses: tuple[str, ...]
    link: str
    out: Direction = Direction()
    back: Direction = Direction()
    agent: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """A node. state: "up" or "GONE"."""

    name: str
    state: str
    nics: tuple[Nic, ...] = ()
    programs: tuple[Program, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch. kind: kind of its fabric."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault. seconds_left: seconds until it is healed automatically; None: it is not."""

    number: int
    what: str
    links: tuple[str, ...] = ()
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one time. time: nanoseconds since the epoch. age: seconds since the cluster was created. span: seconds
    that the rates cover. summary: such as "4 nodes, 1 switch, 4 links". warning: a sentence on the cluster's main problem,
    or empty. carriers: the cluster's infrastructure processes, such as those of its relay. events: the latest events, the
    oldest first."""

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
    events: tuple[FormattedEvent, ...] = ()
    switches: tuple[Switch, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """No cluster to show. why: the reason, as a sentence."""

    why: str

"""What a description comes to once everything that it left out is decided: the layout.

A layout is plain data without pydantic, cheap to load: commands that only look at a running cluster read it
from the cluster's state. Times are integer nanoseconds, rates integer bit/s, sizes integer bytes,
probabilities floats 0..1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Impairment:
    """What one direction of a link does to frames; all zero or empty means nothing.

    delay is one-way. jitter is the spread of the distribution around the delay (standard deviation for
    normal, half-width for uniform); jitter_file is the path of its table or trace. rate 0 means unlimited, unless
    rate_trace is the path of a file of delivery opportunities. queue is in bytes, queue_frames in frames; both 0
    means derived from the rate and the delay. gemodel is empty or p, r, 1-h, 1-k; loss_pattern is a text (see
    `losses`). corrupt_bits: flipped in each corrupted frame; 0 is 1. A frame takes at least minimum_frame bytes of
    the rate, and overhead more; cell_size is the payload of one cell, which takes cell_overhead bytes more.
    rules: texts of fault rules. Whoever uses the files loads them.
    """

    delay: int = 0
    jitter: int = 0
    distribution: str = ""
    rate: int = 0
    queue: int = 0
    loss: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    jitter_file: str = ""
    rate_trace: str = ""
    queue_frames: int = 0
    gemodel: tuple[float, ...] = ()
    loss_pattern: str = ""
    corrupt_bits: int = 0
    minimum_frame: int = 0
    overhead: int = 0
    cell_size: int = 0
    cell_overhead: int = 0
    rules: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != _UNIMPAIRED


_UNIMPAIRED = Impairment()


@dataclass(frozen=True, slots=True)
class Nic:
    """A node's interface. addresses carry their prefix length: ``10.0.0.1/16``."""

    name: str
    mac: str
    mtu: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A static route: destination network, gateway address."""

    destination: str
    via: str


@dataclass(frozen=True, slots=True)
class Node:
    """A virtual computer. forwards: it routes IP between its NICs. cpu_share: cores (0.5 = half of one), 0 =
    no limit. memory: bytes, 0 = no limit. files: absolute path -> text that programs in the node see
    there. tags: what it is one of."""

    name: str
    nics: tuple[Nic, ...]
    routes: tuple[Route, ...] = ()
    forwards: bool = False
    cpus: tuple[int, ...] = ()
    cpu_share: float = 0.0
    memory: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The node's first address without its prefix length, or empty: what its name resolves to."""
        return next((a.partition("/")[0] for nic in self.nics for a in nic.addresses), "")


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch. ports: the numbers in use. learns: it learns addresses from traffic and floods everywhere;
    otherwise it forwards by `forwarding` (MAC -> port number) and floods only to the ports in `tree` (one
    spanning tree)."""

    name: str
    kind: str
    ports: tuple[int, ...]
    learns: bool = True
    tree: tuple[int, ...] = ()
    forwarding: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """Where a link is plugged in: a node and its NIC's name, or a switch and its port's number as text."""

    owner: str
    port: str

    def __str__(self) -> str:
        return f"{self.owner}:{self.port}"


@dataclass(frozen=True, slots=True)
class Link:
    """One cable. forward is the direction a -> b. datapath: "auto"; "netem", "tc" or "relay", which
    shall carry its frames once it is impaired; or "direct" (between two nodes: one veth pair, never impaired). tags: what
    it is one of."""

    a: End
    b: End
    datapath: str = "auto"
    forward: Impairment = Impairment()
    backward: Impairment = Impairment()
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.a}--{self.b}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster with every name, port, address and table decided. slowed: how many times its links are, and its switches'
    own times (see `slowing`)."""

    name: str
    seed: int
    nodes: tuple[Node, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    slowed: int = 1

    def crossbars(self) -> frozenset[str]:
        """Myrinet's switches, by name."""
        return frozenset(switch.name for switch in self.switches if switch.kind == "myrinet")

    def routed(self) -> frozenset[str]:
        """The nodes whose first NICs are at Myrinet's switches, which go by the source routes of frames."""
        crossbars = self.crossbars()
        ends = {end for link in self.links for end in (link.a, link.b) if crossbars & {link.a.owner, link.b.owner}}
        return frozenset(node.name for node in self.nodes if node.nics and End(node.name, node.nics[0].name) in ends)

    def keeps_order(self) -> bool:
        """Whether no link lets frames overtake each other, as long as nothing is injected. netem alone does under jitter."""
        sides = [(side, link.datapath) for link in self.links for side in (link.forward, link.backward)]
        return not any(
            side.reorder or (side.jitter and datapath == "netem") or any("delay" in rule for rule in side.rules)
            for side, datapath in sides
        )

    def macs(self) -> dict[End, str]:
        """The hardware address of each NIC."""
        return {End(node.name, nic.name): nic.mac for node in self.nodes for nic in node.nics}

"""Layout of a cluster: its description with all values resolved.

A layout is plain data without validation, so that it loads fast: commands that only read a running cluster load it from the
cluster's state. Times are integer nanoseconds, rates integer bit/s, sizes integer bytes, probabilities floats 0..1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final, Literal

from testbed.lazy_dataclass import dataclass
from testbed.spec.kinds import ETHERNET, Kind, kind_of

DirectionName = Literal["forward", "backward"]
"""Direction of a link: from its first end to its second, or back."""

Datapath = Literal["direct", "netem", "tc", "relay"]
ConfiguredDatapath = Literal["auto", "direct", "netem", "tc", "relay"]
"""A datapath as a user configures it."""

BOTH: Final[tuple[DirectionName, DirectionName]] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Impairment:
    """Impairment of one direction of a link; false if all values are zero or empty.

    delay is one-way. jitter is the spread of the distribution around the delay (standard deviation for normal,
    half-width for uniform); jitter_file is the path of its table or trace. rate 0 means unlimited, unless rate_trace is
    the path of a file of delivery opportunities. queue is in bytes, queue_frames in frames; if both are 0, the queue is
    derived from rate and delay. gemodel is empty or p, r, 1-h, 1-k; loss_pattern is a text (see `losses`). corrupt_bits is
    the number of bits flipped in each corrupted frame; 0 means 1. A frame counts against the rate with at least
    minimum_frame bytes, plus overhead; cell_size is the payload of a cell, which counts with cell_overhead bytes in
    addition. rules are texts of fault rules. Files are loaded on use.
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
    """A node's interface. addresses: addresses with their prefix length, such as ``10.0.0.1/16``."""

    name: str
    mac: str
    mtu: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A static route. destination: a network, with its prefix length. via: address of the gateway."""

    destination: str
    via: str


@dataclass(frozen=True, slots=True)
class Node:
    """A virtual computer. forwards: whether it routes IP between its NICs. cpus: CPUs that its processes may run on; empty:
    all. cpu_share: limit in cores (0.5: half of one); 0: no limit. memory: limit in bytes; 0: no limit. environment:
    variables of programs in the node. files: files that these see: absolute path -> content. private_directories: absolute
    paths of directories of its own. cores: cores of its host in a run; 0: those of its profile. caches: groups of cores that
    share a cache, if configured. ranks: the core of each program of a run; empty: one program, on core 0. profile: name or
    file of its hardware's costs; empty: the run's."""

    name: str
    nics: tuple[Nic, ...]
    routes: tuple[Route, ...] = ()
    forwards: bool = False
    cpus: tuple[int, ...] = ()
    cpu_share: float = 0.0
    memory: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    private_directories: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    cores: int = 0
    caches: tuple[tuple[int, ...], ...] = ()
    ranks: tuple[int, ...] = ()
    profile: str = ""

    @property
    def address(self) -> str:
        """The node's first address without its prefix length, to which its name resolves; empty if it has none."""
        return next((address.partition("/")[0] for nic in self.nics for address in nic.addresses), "")


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch. ports: the port numbers in use. learns: whether it learns addresses from traffic and floods to all ports;
    otherwise it forwards by `forwarding` (MAC -> port number) and floods only to the ports in `tree`: those of its NICs and
    of a spanning tree."""

    name: str
    kind: str
    ports: tuple[int, ...]
    learns: bool = True
    tree: tuple[int, ...] = ()
    forwarding: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link. owner: a node or switch. port: name of the node's NIC, or number of the switch's port as text."""

    owner: str
    port: str

    def __str__(self) -> str:
        return f"{self.owner}:{self.port}"


@dataclass(frozen=True, slots=True)
class Link:
    """A cable. forward is the direction a -> b. datapath: "auto"; "netem", "tc" or "relay", used while the link is
    impaired; or "direct" (between two nodes: a veth pair, never impaired). kind: of its network, and so of the switches at
    its ends."""

    a: End
    b: End
    datapath: str = "auto"
    forward: Impairment = Impairment()
    backward: Impairment = Impairment()
    tags: tuple[str, ...] = ()
    kind: str = ETHERNET.name

    @property
    def name(self) -> str:
        return f"{self.a}--{self.b}"

    @property
    def model(self) -> Kind | None:
        """The kind of its network if that is modelled; None: the kernel's veth pairs and bridges."""
        kind = kind_of(self.kind)
        return kind if kind.modelled else None


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The tunnel to a link's end on another machine: a VXLAN.

    end: the end on the other machine. vni: VXLAN's network identifier. local, remote: underlay addresses. delay: one-way
    delay of the underlay, ns; the datapath adds the rest of the link's delay. machine: machine of `end`.
    """

    end: End
    vni: int
    local: str
    remote: str
    delay: int = 0
    machine: str = ""

    @property
    def alias(self) -> str:
        """The alias of its interface, which distinguishes it from other tunnels to the same end."""
        return f"{self.vni} {self.local} {self.remote}"


@dataclass(frozen=True, slots=True)
class Part:
    """Data of the whole cluster in the layout of one machine's part. machine: the machine. mtu: MTU of the tunnels. tunnels:
    one for each link to another machine. nodes: all nodes of the cluster, in its order, without files and environment."""

    machine: str
    mtu: int
    tunnels: tuple[Tunnel, ...] = ()
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster with every name, port, address and table, or one machine's part of it. slowed: the factor by which the times
    of its links and switches are dilated (see `dilation`). part: for one machine's part, data of the whole cluster."""

    name: str
    seed: int
    nodes: tuple[Node, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    slowed: int = 1
    part: Part | None = None

    def simulated_switches(self) -> dict[str, Kind]:
        """Return the kinds of the simulated switches, by switch name."""
        return {switch.name: kind for switch in self.switches if (kind := kind_of(switch.kind)).modelled}

    def source_routed_nodes(self) -> dict[str, Kind]:
        """Return the nodes whose first NICs are in networks that forward by source routes, with their kinds."""
        return {name: kind for name, kind in self.framed_nodes().items() if kind.routed}

    def framed_nodes(self) -> dict[str, Kind]:
        """Return the nodes whose first NICs are in networks with a framing, with the kinds of these networks."""
        kinds = {end: kind for link in self.links if (kind := link.model) and kind.framing for end in (link.a, link.b)}
        first_ends = {node.name: End(node.name, node.nics[0].name) for node in self.nodes if node.nics}
        return {name: kinds[end] for name, end in first_ends.items() if end in kinds}

    def framings(self) -> set[str]:
        """Return the framings of the networks of the nodes' first NICs, without Ethernet."""
        return {kind.framing for kind in self.framed_nodes().values()}

    def keeps_order(self) -> bool:
        """Whether no link reorders frames, without injected faults. Of the datapaths, only netem reorders under jitter."""
        return not any(
            impairment.reorder
            or (impairment.jitter and link.datapath == "netem")
            or any("delay" in rule for rule in impairment.rules)
            for link in self.links
            for impairment in (link.forward, link.backward)
        )

    @property
    def with_all_nodes(self) -> Layout:
        """The layout with the cluster's nodes on all machines."""
        if self.part is None:
            return self
        local = {node.name: node for node in self.nodes}
        return replace(self, nodes=tuple(local.get(node.name, node) for node in self.part.nodes))

    def nodes_elsewhere(self) -> list[Node]:
        """Return the cluster's nodes on other machines."""
        local = {node.name for node in self.nodes}
        return [node for node in self.part.nodes if node.name not in local] if self.part is not None else []

    def tunnels(self) -> dict[str, Tunnel]:
        """Return the tunnels of the links that have an end on another machine, by the links' names."""
        if self.part is None:
            return {}
        by_end = {tunnel.end: tunnel for tunnel in self.part.tunnels}
        return {link.name: by_end[end] for link in self.links for end in (link.a, link.b) if end in by_end}

    def macs(self) -> dict[End, str]:
        """Return the hardware address of each NIC."""
        return {End(node.name, nic.name): nic.mac for node in self.nodes for nic in node.nics}

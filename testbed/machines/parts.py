"""The parts of a cluster on several machines: one layout for each machine, with a tunnel for every link to another machine.

Each direction of a link between machines is impaired by the relay of the machine where its frames arrive. The underlay's
delay is subtracted from the delay of the link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

from testbed.errors import UnsupportedError
from testbed.machines.node_placement import Placement
from testbed.spec.layout import DirectionName, Impairment, Layout, Link, Node, Part, Switch, Tunnel
from testbed.spec.units import format_duration

ENCAPSULATION: Final = {4: 50, 6: 70}
"""Bytes that VXLAN adds to a frame's payload, by IP version: IP, UDP and VXLAN headers, and the Ethernet header of the
encapsulated frame (RFC 7348, section 5)."""

_VNIS: Final = 2**24

Pair = tuple[str, str]
"""Two machines."""


@dataclass(slots=True)
class _Share:
    """Elements of a cluster on one machine."""

    nodes: list[Node] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    tunnels: list[Tunnel] = field(default_factory=list)


class Underlays:
    """The networks between the machines. addresses, mtus: underlay addresses and MTUs by machine. one_way: measured one-way
    delays in nanoseconds, by pair of machines in either order."""

    def __init__(self, addresses: Mapping[str, str], mtus: Mapping[str, int], one_way: Mapping[Pair, int]) -> None:
        self.addresses = addresses
        self.mtus = mtus
        self.one_way = {**one_way, **{(b, a): delay for (a, b), delay in one_way.items()}}


def linked_machines(layout: Layout, placement: Placement) -> list[Pair]:
    """Return the pairs of machines between which there are links, each pair once."""
    return sorted({(min(a, b), max(a, b)) for _, a, b in _ends_of(layout.links, placement) if a != b})


def _ends_of(links: Iterable[Link], placement: Placement) -> Iterator[tuple[Link, str, str]]:
    """Yield links with the machines of their two ends."""
    for link in links:
        yield link, placement.machine_of[link.a.owner], placement.machine_of[link.b.owner]


def parts(layout: Layout, name: str, placement: Placement, underlays: Underlays) -> dict[str, Layout]:
    """Return the part of each machine that has nodes or switches. name: name of the cluster.

    Raises UnsupportedError for an underlay whose MTU is too small, and for links between machines that have a delay or
    jitter and whose delay is shorter than the underlay's, that use `jitter_file` or `rate_trace`, or whose datapath is none
    of auto, relay and direct.
    """
    mtu = max((nic.mtu for node in layout.nodes for nic in node.nics), default=1500)
    reasons = [*_small_mtus(mtu, placement, underlays), *_refusals(layout, placement, underlays)]
    if reasons:
        raise UnsupportedError(
            "\n".join([f"{name} cannot be spread over these machines:", *(f"  {reason}" for reason in reasons)])
        )
    vnis = vxlan_ids(name, placement.cut)
    shares = {machine: _Share() for machine in placement.machine_of.values()}
    for node in layout.nodes:
        shares[placement.machine_of[node.name]].nodes.append(node)
    for switch in layout.switches:
        shares[placement.machine_of[switch.name]].switches.append(switch)
    for link, a, b in _ends_of(layout.links, placement):
        if a == b:
            shares[a].links.append(link)
            continue
        for machine, peer, remote_end in ((a, b, link.b), (b, a, link.a)):
            addresses = underlays.addresses[machine], underlays.addresses[peer]
            tunnel = Tunnel(remote_end, vnis[link.name], *addresses, underlays.one_way[a, b], peer)
            shares[machine].tunnels.append(tunnel)
            incoming: DirectionName = "backward" if remote_end is link.b else "forward"
            shares[machine].links.append(_receiver_link(link, incoming))
    everywhere = tuple(replace(node, files={}, environment={}) for node in layout.nodes)  # one object for all machines
    return {
        machine: replace(
            layout,
            nodes=tuple(share.nodes),
            switches=tuple(share.switches),
            links=tuple(share.links),
            part=Part(machine, mtu, tuple(share.tunnels), everywhere),
        )
        for machine, share in shares.items()
    }


def _small_mtus(mtu: int, placement: Placement, underlays: Underlays) -> Iterator[str]:
    if not placement.cut:
        return
    for machine in dict.fromkeys(placement.machine_of.values()):
        added = ENCAPSULATION[6 if ":" in underlays.addresses[machine] else 4]
        if underlays.mtus[machine] < mtu + added:
            yield (
                f"machine {machine}: its underlay has the MTU {underlays.mtus[machine]:,}, and frames of {mtu:,} bytes with "
                f"VXLAN's {added} need {mtu + added:,}: raise it, or lower the nodes' MTU to "
                f"{underlays.mtus[machine] - added:,}"
            )


def _refusals(layout: Layout, placement: Placement, underlays: Underlays) -> Iterator[str]:
    """Yield a sentence for each reason why links cannot connect machines, with the links that it concerns."""
    links_of: dict[str, dict[str, None]] = {}
    for link, a, b in _ends_of(layout.links, placement):
        if a != b:
            for reason in _reasons(link, min(a, b), max(a, b), underlays):
                links_of.setdefault(reason, {})[link.name] = None
    for reason, links in links_of.items():
        yield f"{next(iter(links))}{f' and {len(links) - 1} more' if len(links) > 1 else ''}: {reason}"


def _reasons(link: Link, a: str, b: str, underlays: Underlays) -> Iterator[str]:
    minimum = underlays.one_way[a, b]
    if link.datapath not in ("auto", "relay", "direct"):
        yield f"the datapath {link.datapath!r} cannot connect machines: use auto, relay or direct"
    for side in (link.forward, link.backward):
        if side.jitter_file or side.rate_trace:
            yield "links between machines support neither jitter_file nor rate_trace"
        elif (side.delay or side.jitter) and side.delay < minimum:
            yield (
                f"a delay of {format_duration(side.delay)} is less than the {format_duration(minimum)} that the network "
                f"between machines {a} and {b} has"
            )


def vxlan_ids(name: str, links: tuple[str, ...]) -> dict[str, int]:
    """Return the VXLAN id of each link: a hash of the names of cluster and link, or the next free id if that is in use. So a
    link usually keeps its id when others change."""
    ids: dict[str, int] = {}
    used_ids = {0}
    for link in links:
        vni = int.from_bytes(blake2b(f"{name} {link}".encode(), digest_size=3).digest(), "big")
        while vni in used_ids:
            vni = (vni + 1) % _VNIS
        used_ids.add(vni)
        ids[link] = vni
    return ids


def _receiver_link(link: Link, incoming: DirectionName) -> Link:
    """Return a link as it is on the machine where direction `incoming` arrives, without the impairments of the other
    direction, which the other machine applies. A direct link has no impairments."""
    if link.datapath == "direct":
        return link
    unimpaired = Impairment()
    if incoming == "forward":
        return replace(link, backward=unimpaired, datapath="relay")
    return replace(link, forward=unimpaired, datapath="relay")


def complete_layout(part_layouts: Iterable[Layout]) -> Layout:
    """Reassemble a cluster from all of its parts: the inverse of `parts`, except that the datapath of links between machines
    is the relay, unless it is direct."""
    layouts = list(part_layouts)
    first = layouts[0].part
    assert first is not None, "each layout is a part"
    local_nodes = {node.name: node for layout in layouts for node in layout.nodes}
    links: dict[str, Link] = {}
    for layout in layouts:
        tunnels = layout.tunnels()
        for link in layout.links:
            if link.name in tunnels and link.name in links:
                half = links[link.name]
                link = (
                    replace(half, forward=link.forward)
                    if tunnels[link.name].end == link.a
                    else replace(half, backward=link.backward)
                )
            links[link.name] = link
    return replace(
        layouts[0],
        nodes=tuple(local_nodes.get(node.name, node) for node in first.nodes),
        switches=tuple(switch for layout in layouts for switch in layout.switches),
        links=tuple(links.values()),
        part=None,
    )

"""Wiring of links to NICs and ports, and the layer-2 segments that result.

A link's end at a node is the NIC that the end names; otherwise the next of the node's declared NICs with a name other than
ethN; otherwise the next free ethN, in link order. An end at a switch is the port that it names; otherwise the next free
number from 1, in link order. A segment is a set of elements connected by switches, or a single link between two nodes;
segments are ordered by their first link. NICs of different MTUs on one segment are permitted, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from testbed.lazy_dataclass import dataclass
from testbed.spec.elements import Link, Nic, Node, Switch
from testbed.spec.layout import End


@dataclass(frozen=True, slots=True)
class Segment:
    """A layer-2 network. switches: names of its switches. nics: its NICs, in link order. links: indices of its links in the
    description."""

    switches: tuple[str, ...]
    nics: tuple[End, ...]
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Wiring of a description. ends: both ends of each link; None for a link with an unknown end. declared: the declared
    NICs, including those without a link. segments: segments in the order of their first links."""

    ends: tuple[tuple[End, End] | None, ...]
    declared: dict[End, Nic]
    segments: tuple[Segment, ...]


def nic_names(node: Node) -> list[str]:
    """Return the names of the declared NICs; a NIC without a name gets the next free ethN."""
    used = {nic.name for nic in node.nics}
    free = (f"eth{number}" for number in range(len(node.nics) + len(used)) if f"eth{number}" not in used)
    return [nic.name or next(free) for nic in node.nics]


def wire(nodes: Sequence[Node], switches: Sequence[Switch], links: Sequence[Link]) -> Wiring:
    """Choose the NICs and ports of all links. A link with an unknown end has none: the checks of a description with mistakes
    call this, too."""
    is_switch = dict.fromkeys((switch.name for switch in switches), True) | dict.fromkeys(
        (node.name for node in nodes), False
    )
    declared = {
        End(node.name, name): nic for node in nodes for name, nic in zip(nic_names(node), node.nics, strict=True)
    }
    used: dict[str, set[str]] = {name: set() for name in is_switch}
    for link in links:
        for end in link.ends:
            owner, _, port = end.partition(":")
            if port and owner in used:
                used[owner].add(port)
    free: dict[str, Iterator[str]] = {switch.name: _free_ports(used[switch.name]) for switch in switches}
    for node in nodes:
        declared_names = [nic.name for nic in node.nics if nic.name and not re.fullmatch(r"eth\d+", nic.name)]
        free[node.name] = _free_nics(used[node.name], declared_names)
    ends: list[tuple[End, End] | None] = []
    for link in links:
        if not all(owner in is_switch for owner in link.owners):
            ends.append(None)
            continue
        a, b = (End(owner, port or next(free[owner])) for owner, _, port in (end.partition(":") for end in link.ends))
        ends.append((a, b))
    return Wiring(tuple(ends), declared, _segments(ends, is_switch))


def _free_ports(used: set[str]) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        if str(number) not in used:
            yield str(number)


def _free_nics(used: set[str], declared_names: Sequence[str]) -> Iterator[str]:
    yield from (name for name in declared_names if name not in used)
    number = 0
    while True:
        if f"eth{number}" not in used:
            yield f"eth{number}"
        number += 1


def _segments(ends: Sequence[tuple[End, End] | None], is_switch: dict[str, bool]) -> tuple[Segment, ...]:
    parent = {name: name for name, switch in is_switch.items() if switch}

    def find(name: str) -> str:
        """Return the representative of a switch's segment (union-find with path halving)."""
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for pair in ends:
        if pair and is_switch[pair[0].owner] and is_switch[pair[1].owner]:
            parent[find(pair[0].owner)] = find(pair[1].owner)
    members: dict[str | int, list[int]] = {}
    for index, pair in enumerate(ends):
        if pair:
            switch = next((end.owner for end in pair if is_switch[end.owner]), None)
            members.setdefault(index if switch is None else find(switch), []).append(index)
    segments = []
    for indices in members.values():
        ends_of_segment = [end for index in indices for end in ends[index] or ()]
        switches = dict.fromkeys(end.owner for end in ends_of_segment if is_switch[end.owner])
        nics = tuple(end for end in ends_of_segment if not is_switch[end.owner])
        segments.append(Segment(tuple(switches), nics, tuple(indices)))
    return tuple(segments)


def mtu_warnings(nodes: Sequence[Node], switches: Sequence[Switch], links: Sequence[Link], default: int) -> list[str]:
    """Return a sentence for each segment with NICs of different MTUs, in the segments' order. default: MTU of the NICs that
    declare none."""
    if all(nic.mtu in (None, default) for node in nodes for nic in node.nics):
        return []  # the wiring of a large cluster takes long
    wiring = wire(nodes, switches, links)
    mtus = {end: nic.mtu or default for end, nic in wiring.declared.items()}
    sentences = []
    for segment in wiring.segments:
        by_mtu: dict[int, End] = {}  # the first NIC with each MTU
        for nic in segment.nics:
            by_mtu.setdefault(mtus.get(nic, default), nic)
        if len(by_mtu) > 1:
            low, high = min(by_mtu), max(by_mtu)
            owners = (
                f"switch {segment.switches[0]}" if segment.switches else " and ".join(nic.owner for nic in segment.nics)
            )
            sentences.append(
                f"the network of {owners} has NICs of different MTUs, {by_mtu[high]} with {high:,} and {by_mtu[low]} with "
                f"{low:,} bytes: longer frames to {by_mtu[low]} are dropped"
            )
    return sentences

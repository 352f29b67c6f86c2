"""Forwarding tables for Ethernet switches whose links form cycles.

With STP off and learning on, the first broadcast in a ring would circulate forever. So the switches of such a segment do
not learn: every MAC has an entry on every switch, along a shortest path, and floods follow a spanning tree. Of several
shortest paths, a hash of the switch's name and the destination's MAC selects one. A bridge's forwarding database does not
consider the source, but different destinations are still spread over the paths.

All tables of a segment together have as many entries as the product of its switches and NICs. So a switch's table is
computed on first use: checking a description of thousands of switches computes no table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import End


@dataclass(frozen=True, slots=True)
class Graph:
    """A segment's switches, cables and NICs. neighbours: by switch, port number and neighbour of each port to another
    switch. residents: by switch, MAC and port number of each NIC at it; switches without NICs are absent. nics: number of
    NICs."""

    neighbours: Mapping[str, Sequence[tuple[int, str]]]
    residents: Mapping[str, Sequence[tuple[str, int]]]
    nics: int


class Entries(Mapping[str, int]):
    """Entries of one switch: MAC -> port number. Computed on first access."""

    __slots__ = ("_graph", "_ports", "_switch")

    def __init__(self, graph: Graph, switch: str) -> None:
        self._graph = graph
        self._switch = switch
        self._ports: dict[str, int] | None = None

    def __getitem__(self, mac: str) -> int:
        return self._computed()[mac]

    def __iter__(self) -> Iterator[str]:
        return iter(self._computed())

    def __len__(self) -> int:
        return self._graph.nics

    def __repr__(self) -> str:
        return f"<{len(self)} entries of {self._switch}>"

    def _computed(self) -> dict[str, int]:
        if self._ports is None:
            self._ports = _entries(self._graph, self._switch)
        return self._ports


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of one switch. forwarding: MAC -> port number. tree: the ports to which it floods, ascending: those of its NICs
    and of the spanning tree."""

    forwarding: Entries
    tree: tuple[int, ...]


def is_cyclic(switches: Sequence[str], cables: Sequence[tuple[End, End]]) -> bool:
    """Whether connected switches have more cables between them than a tree has. Two parallel cables are a cycle."""
    return len(cables) >= len(switches)


def tables(
    switches: Sequence[str], cables: Sequence[tuple[End, End]], nics: Sequence[tuple[str, End]]
) -> Mapping[str, Tables]:
    """Return the tables of a segment's switches.

    cables: cables between its switches. nics: MAC and switch port of each NIC.
    """
    neighbours: dict[str, list[tuple[int, str]]] = {switch: [] for switch in switches}
    for a, b in cables:
        neighbours[a.owner].append((int(a.port), b.owner))
        neighbours[b.owner].append((int(b.port), a.owner))
    for ports in neighbours.values():
        ports.sort()
    residents: dict[str, list[tuple[str, int]]] = {}
    for mac, port_end in nics:
        residents.setdefault(port_end.owner, []).append((mac, int(port_end.port)))
    graph = Graph(neighbours, residents, len(nics))
    trees = _tree(switches, cables)
    return {
        switch: Tables(
            Entries(graph, switch), tuple(sorted([*(port for _, port in residents.get(switch, ())), *trees[switch]]))
        )
        for switch in switches
    }


def _entries(graph: Graph, switch: str) -> dict[str, int]:
    hops = _first_hops(graph.neighbours, switch)
    ports = [port for port, _ in graph.neighbours[switch]]
    ports_of: dict[int, list[int]] = {}  # by the set of first hops, of which there are few
    entries: dict[str, int] = {}
    for target, residents in graph.residents.items():
        if target == switch:
            entries.update(residents)
            continue
        hop_mask = hops[target]
        if hop_mask not in ports_of:
            ports_of[hop_mask] = [port for position, port in enumerate(ports) if hop_mask >> position & 1]
        candidate_ports = ports_of[hop_mask]
        for mac, _ in residents:
            entries[mac] = candidate_ports[_choose_path(switch, mac, len(candidate_ports))]
    return entries


def _first_hops(neighbours: Mapping[str, Sequence[tuple[int, str]]], start: str) -> dict[str, int]:
    """Return for each switch the first hops of the shortest paths from `start`, as a bit mask: bit i is the i-th neighbour
    of `start`."""
    reached = {start: 0}
    level: dict[str, int] = {}
    for position, (_, neighbour) in enumerate(neighbours[start]):
        level[neighbour] = level.get(neighbour, 0) | 1 << position
    while level:
        reached.update(level)
        next_level: dict[str, int] = {}
        for switch, hops in level.items():
            for _, neighbour in neighbours[switch]:
                if neighbour not in reached:
                    next_level[neighbour] = next_level.get(neighbour, 0) | hops
        level = next_level
    return reached


def _choose_path(switch: str, mac: str, count: int) -> int:
    if count == 1:
        return 0
    return int.from_bytes(blake2b(f"{switch} {mac}".encode(), digest_size=8).digest()) % count


def _tree(switches: Sequence[str], cables: Sequence[tuple[End, End]]) -> dict[str, list[int]]:
    """Return the ports of a breadth-first spanning tree from the first switch, at both ends of each cable."""
    incident: dict[str, list[tuple[End, End]]] = {switch: [] for switch in switches}
    for a, b in cables:
        incident[a.owner].append((a, b))
        incident[b.owner].append((b, a))
    ports_of: dict[str, list[int]] = {switch: [] for switch in switches}
    visited = {switches[0]}
    queue = deque([switches[0]])
    while queue:
        for near, far in incident[queue.popleft()]:
            if far.owner not in visited:
                visited.add(far.owner)
                queue.append(far.owner)
                ports_of[near.owner].append(int(near.port))
                ports_of[far.owner].append(int(far.port))
    return ports_of

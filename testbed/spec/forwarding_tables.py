"""Forwarding tables for Ethernet switches whose links form cycles.

With STP off and learning on, the first broadcast in a ring would circulate forever. So such a segment does not learn:
every MAC has an entry on every switch, along a shortest path, and floods go along one spanning tree. Among several
shortest paths a hash of the switch's name and the destination's MAC decides: a bridge's forwarding database knows only
the destination, and different destinations still spread over the paths.

All tables of a segment together have as many entries as it has switches times NICs. So a switch's table is computed on
first use: checking a description of thousands of switches needs none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import End


@dataclass(frozen=True, slots=True)
class Graph:
    """A segment's switches, cables and NICs. neighbours: by switch, port number and the switch at the other end of the
    cable, by port. residents: by switch that has any, its NICs' MACs and port numbers."""

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
        return self._known()[mac]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return self._graph.nics

    def __repr__(self) -> str:
        return f"<{len(self)} entries of {self._switch}>"

    def _known(self) -> dict[str, int]:
        if self._ports is None:
            self._ports = _entries(self._graph, self._switch)
        return self._ports


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of one switch. forwarding: MAC -> port number; tree: the ports to which it floods, ascending."""

    forwarding: Entries
    tree: tuple[int, ...]


def is_cyclic(switches: Sequence[str], cables: Sequence[tuple[End, End]]) -> bool:
    """Whether connected switches have more cables between them than a tree; two parallel cables are a cycle."""
    return len(cables) >= len(switches)


def tables(
    switches: Sequence[str], cables: Sequence[tuple[End, End]], nics: Sequence[tuple[str, End]]
) -> Mapping[str, Tables]:
    """Return the tables of a segment's switches.

    cables: between switches. nics: each NIC's MAC and the switch port that it is plugged into.
    """
    neighbours: dict[str, list[tuple[int, str]]] = {switch: [] for switch in switches}
    for a, b in cables:
        neighbours[a.owner].append((int(a.port), b.owner))
        neighbours[b.owner].append((int(b.port), a.owner))
    for ports in neighbours.values():
        ports.sort()
    residents: dict[str, list[tuple[str, int]]] = {}
    for mac, plug in nics:
        residents.setdefault(plug.owner, []).append((mac, int(plug.port)))
    graph = Graph(neighbours, residents, len(nics))
    trees = _tree(switches, cables)
    return {
        switch: Tables(
            Entries(graph, switch), tuple(sorted([*(port for _, port in residents.get(switch, ())), *trees[switch]]))
        )
        for switch in switches
    }


def _entries(graph: Graph, switch: str) -> dict[str, int]:
    ways = _ways(graph.neighbours, switch)
    ports = [port for port, _ in graph.neighbours[switch]]
    chosen: dict[int, list[int]] = {}  # by the set of ways: few of them occur
    entries: dict[str, int] = {}
    for home, residents in graph.residents.items():
        if home == switch:
            entries.update(residents)
            continue
        way = ways[home]
        if way not in chosen:
            chosen[way] = [port for position, port in enumerate(ports) if way >> position & 1]
        nearer = chosen[way]
        for mac, _ in residents:
            entries[mac] = nearer[_choice(switch, mac, len(nearer))]
    return entries


def _ways(neighbours: Mapping[str, Sequence[tuple[int, str]]], start: str) -> dict[str, int]:
    """Return, for each other switch, the start's cables on shortest paths to it: bit i is the i-th of the start's
    neighbours."""
    known = {start: 0}
    level: dict[str, int] = {}
    for position, (_, neighbour) in enumerate(neighbours[start]):
        level[neighbour] = level.get(neighbour, 0) | 1 << position
    while level:
        known.update(level)
        further: dict[str, int] = {}
        for switch, ways in level.items():
            for _, neighbour in neighbours[switch]:
                if neighbour not in known:
                    further[neighbour] = further.get(neighbour, 0) | ways
        level = further
    return known


def _choice(switch: str, mac: str, count: int) -> int:
    if count == 1:
        return 0
    return int.from_bytes(blake2b(f"{switch} {mac}".encode(), digest_size=8).digest()) % count


def _tree(switches: Sequence[str], cables: Sequence[tuple[End, End]]) -> dict[str, list[int]]:
    """Return the ports of a breadth-first spanning tree from the first switch, at both ends of each cable."""
    incident: dict[str, list[tuple[End, End]]] = {switch: [] for switch in switches}
    for a, b in cables:
        incident[a.owner].append((a, b))
        incident[b.owner].append((b, a))
    chosen: dict[str, list[int]] = {switch: [] for switch in switches}
    seen = {switches[0]}
    queue = deque([switches[0]])
    while queue:
        for near, far in incident[queue.popleft()]:
            if far.owner not in seen:
                seen.add(far.owner)
                queue.append(far.owner)
                chosen[near.owner].append(int(near.port))
                chosen[far.owner].append(int(far.port))
    return chosen

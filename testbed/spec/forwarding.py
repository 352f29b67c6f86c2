"""Forwarding tables for Ethernet switches whose links form cycles.

With STP off and learning on, the first broadcast in a ring would circulate for ever. So such a segment does
not learn: every MAC has an entry on every switch, along a shortest path, and floods go along one spanning
tree. Where several shortest paths begin, a hash of the switch's name and the destination's MAC decides: a
bridge's forwarding database knows the destination only, and so different destinations still spread over the
paths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from testbed.spec.layout import End


@dataclass(slots=True)
class Tables:
    """Of one switch. forwarding: MAC -> port number; tree: the ports to which it floods, ascending."""

    forwarding: dict[str, int] = field(default_factory=dict)
    tree: tuple[int, ...] = ()


def is_cyclic(switches: Sequence[str], cables: Sequence[tuple[End, End]]) -> bool:
    """Whether connected switches have more cables between them than a tree; two parallel cables are a
    cycle."""
    return len(cables) >= len(switches)


def tables(
    switches: Sequence[str], cables: Sequence[tuple[End, End]], nics: Sequence[tuple[str, End]]
) -> Mapping[str, Tables]:
    """The tables of a segment's switches.

    cables: between switches. nics: each NIC's MAC and the switch port that it is plugged into.
    """
    neighbours: dict[str, list[tuple[int, str]]] = {switch: [] for switch in switches}
    for a, b in cables:
        neighbours[a.owner].append((int(a.port), b.owner))
        neighbours[b.owner].append((int(b.port), a.owner))
    for ports in neighbours.values():
        ports.sort()
    result = {switch: Tables() for switch in switches}
    at: dict[str, list[tuple[str, int]]] = {}
    for mac, plug in nics:
        at.setdefault(plug.owner, []).append((mac, int(plug.port)))
    for home, residents in at.items():
        for mac, port in residents:
            result[home].forwarding[mac] = port
        distance = _distances(home, neighbours)
        for switch in switches:
            if switch == home:
                continue
            nearer = [port for port, other in neighbours[switch] if distance[other] == distance[switch] - 1]
            for mac, _ in residents:
                result[switch].forwarding[mac] = nearer[_choice(switch, mac, len(nearer))]
    trees = _tree(switches, cables)
    for switch, table in result.items():
        own = [port for _, port in at.get(switch, ())]
        table.tree = tuple(sorted(own + trees[switch]))
    return result


def _distances(start: str, neighbours: Mapping[str, Sequence[tuple[int, str]]]) -> dict[str, int]:
    distance = {start: 0}
    queue = deque([start])
    while queue:
        switch = queue.popleft()
        for _, other in neighbours[switch]:
            if other not in distance:
                distance[other] = distance[switch] + 1
                queue.append(other)
    return distance


def _choice(switch: str, mac: str, count: int) -> int:
    if count == 1:
        return 0
    return int.from_bytes(blake2b(f"{switch} {mac}".encode(), digest_size=8).digest()) % count


def _tree(switches: Sequence[str], cables: Sequence[tuple[End, End]]) -> dict[str, list[int]]:
    """The ports of the cables in a breadth-first spanning tree from the first switch, at both of their
    ends."""
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

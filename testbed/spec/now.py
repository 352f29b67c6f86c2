"""Wiring of the Berkeley NOW, as far as it was published.

Chun, Mainwaring, Culler, "Virtual Network Transport Protocols for Myrinet" (IEEE Micro 18(1), 1998): about 100
workstations, 40 Myrinet switches, "fat tree-like", three subclusters joined by a small number of cables. The number of
hosts and switches of each subcluster and its cabling are **our choice**: subclusters of 34, 30 and 36
hosts on 13, 14 and 13 switches in three levels, connected at their top switches. No switch uses more than eight ports.
"""

from __future__ import annotations

from collections.abc import Iterator

from testbed.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _Subcluster:
    """A subcluster. hosts: number of hosts. leaves, middles, tops: numbers of switches on each level. uplinks: number of
    cables from each leaf switch to different middle switches; every middle switch has a cable to each top switch."""

    hosts: int
    leaves: int
    middles: int
    tops: int
    uplinks: int

    @property
    def switches(self) -> int:
        return self.leaves + self.middles + self.tops


_SUBCLUSTERS = (
    _Subcluster(hosts=34, leaves=7, middles=4, tops=2, uplinks=3),
    _Subcluster(hosts=30, leaves=6, middles=6, tops=2, uplinks=3),
    _Subcluster(hosts=36, leaves=8, middles=3, tops=2, uplinks=2),
)


def now_cables() -> Iterator[tuple[str, str]]:
    """Yield the ends of all cables. Nodes are n1..n100; switches are s1..s40, in each subcluster first the leaf, then the
    middle and top switches."""
    node = switch = 1
    tops: list[list[str]] = []
    for subcluster in _SUBCLUSTERS:
        leaves = [f"s{switch + index}" for index in range(subcluster.leaves)]
        middles = [f"s{switch + subcluster.leaves + index}" for index in range(subcluster.middles)]
        first_top = switch + subcluster.leaves + subcluster.middles
        tops.append([f"s{first_top + index}" for index in range(subcluster.tops)])
        for host in range(subcluster.hosts):
            yield f"n{node + host}", leaves[host * subcluster.leaves // subcluster.hosts]
        for index, leaf in enumerate(leaves):
            for uplink in range(subcluster.uplinks):
                yield leaf, middles[(index * subcluster.uplinks + uplink) % subcluster.middles]
        for middle in middles:
            for top in tops[-1]:
                yield middle, top
        node += subcluster.hosts
        switch += subcluster.switches
    # Our choice: two cables between each pair of subclusters, so few that traffic between them saturates them, as in the
    # paper's section on permutations.
    for first, second in ((0, 1), (1, 2), (2, 0)):
        yield from zip(tops[first], tops[second], strict=True)

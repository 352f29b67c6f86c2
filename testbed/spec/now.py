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
    """A subcluster. uplinks: cables from each leaf switch to different middle switches; every middle switch has a cable to
    each top switch."""

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
    """Yield the ends of all cables: nodes n1..n100, then leaf, middle and top switches of each subcluster, s1..s40."""
    node = switch = 1
    tops: list[list[str]] = []
    for sub in _SUBCLUSTERS:
        leaves = [f"s{switch + index}" for index in range(sub.leaves)]
        middles = [f"s{switch + sub.leaves + index}" for index in range(sub.middles)]
        tops.append([f"s{switch + sub.leaves + sub.middles + index}" for index in range(sub.tops)])
        for host in range(sub.hosts):
            yield f"n{node + host}", leaves[host * sub.leaves // sub.hosts]
        for index, leaf in enumerate(leaves):
            for uplink in range(sub.uplinks):
                yield leaf, middles[(index * sub.uplinks + uplink) % sub.middles]
        for middle in middles:
            for top in tops[-1]:
                yield middle, top
        node += sub.hosts
        switch += sub.switches
    # Two cables between every two subclusters: the bisection that the paper's permutations saturate.
    for first, second in ((0, 1), (1, 2), (2, 0)):
        yield from zip(tops[first], tops[second], strict=True)

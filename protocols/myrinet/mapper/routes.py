"""Deadlock-free routes: up*/down* on the map (Schroeder et al., "Autonet", IEEE JSAC 9(8), 1991).

Switches are ordered; a cable leads up to the earlier switch. A route goes up zero or more times, then down zero or more
times, never up again. So a frame that occupies a channel always waits for a later channel of a total order, and
circular waits are impossible.

Autonet's order, by the distance from a root, connects all hosts. But in a fat tree one spine becomes the root, and no
route uses the other spines. So another order is preferred (ours): by the distance from the nearest host, the farthest
first. It is used if it also connects all hosts, and the total length of its routes is not greater.

The choice of the root is ours, too: the switch with the least distance to its farthest host. Ties are broken by the
greatest distance to the nearest host, then by the order of discovery. A hash of both hosts selects one of the shortest
legal routes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from protocols.myrinet.envelope import Route
from protocols.myrinet.mapper.network_map import Port, Topology

_FAR: Final = 1 << 30
_MASK: Final = (1 << 64) - 1

Step = tuple[int, Port]
"""The port by which a switch is left, and the far end of its cable."""

Choices = tuple[list[list[Step]], list[list[Step]]]
"""Steps of shortest legal routes to a target, by switch: those while going up is still allowed, and those after a step
down."""


class _Order:
    """The legal routes under an order of the switches. rank: position of each switch in the order. choices: by target,
    a populated switch. length: total length of the shortest legal routes between all populated switches, in cables."""

    def __init__(self, steps: list[list[Step]], order: Sequence[int], populated: Sequence[int]) -> None:
        self._steps, self._order = steps, order
        self.rank = [0] * len(order)
        for rank, switch in enumerate(order):
            self.rank[switch] = rank
        self.length = 0
        self.choices = {switch: self._choices_towards(switch, populated) for switch in populated}

    def _choices_towards(self, target: int, starts: Sequence[int]) -> Choices:
        """Return the choices for a target, and add the lengths of the routes from `starts` to `length`."""
        rank, count = self.rank, len(self._steps)
        only_down, unrestricted = [_FAR] * count, [_FAR] * count
        only_down[target] = 0
        queue = deque([target])
        while queue:
            switch = queue.popleft()
            for _, end in self._steps[switch]:
                if rank[end.switch] < rank[switch] and only_down[end.switch] == _FAR:
                    only_down[end.switch] = only_down[switch] + 1
                    queue.append(end.switch)
        for switch in self._order:
            above = [unrestricted[end.switch] for _, end in self._steps[switch] if rank[end.switch] < rank[switch]]
            unrestricted[switch] = min([only_down[switch], *(distance + 1 for distance in above)])
        self.length += sum(unrestricted[start] for start in starts)
        while_up: list[list[Step]] = [[] for _ in range(count)]
        after_down: list[list[Step]] = [[] for _ in range(count)]
        for switch, steps in enumerate(self._steps):
            for step in steps:
                far = step[1].switch
                if rank[far] < rank[switch]:
                    if unrestricted[far] + 1 == unrestricted[switch]:
                        while_up[switch].append(step)
                else:
                    if only_down[far] + 1 == only_down[switch]:
                        after_down[switch].append(step)
                    if only_down[far] + 1 == unrestricted[switch]:
                        while_up[switch].append(step)
        return while_up, after_down


class Routing:
    """Routes between all hosts of a map."""

    def __init__(self, topology: Topology) -> None:
        self._map = topology
        self._steps: list[list[Step]] = [
            [(port, end) for port, end in sorted(ends.items()) if isinstance(end, Port) and end.switch != switch]
            for switch, ends in enumerate(topology.ends)
        ]
        self._populated = sorted({place.switch for place in topology.at.values()})
        self.root = self._choose_root()
        """The root switch; 0 if there are no switches."""
        levels = self._distances(self.root) if self._steps else []
        by_root = sorted(range(len(levels)), key=lambda switch: (levels[switch], switch))
        heights = list(map(min, zip(*map(self._distances, self._populated), strict=True)))
        by_height = sorted(by_root, key=lambda switch: -heights[switch])
        orders = [_Order(self._steps, order, self._populated) for order in (by_height, by_root)]
        self._order = min(orders, key=lambda order: order.length)
        self.rank: Sequence[int] = self._order.rank
        """Rank of each switch; a cable leads up to the lower rank."""

    def routes(self, source: int) -> dict[int, Route]:
        """Return the routes from a host to all other hosts, by the numbers of these."""
        topology = self._map
        if not topology.at:  # no switch: one cable between two hosts, or none
            return {number: () for number in (topology.me, *topology.hosts) if number != source and topology.hosts}
        return {number: self._route(source, number) for number in sorted(topology.at) if number != source}

    def _route(self, source: int, destination: int) -> Route:
        (switch, port), target = self._map.at[source], self._map.at[destination]
        choices, rank = self._order.choices[target.switch], self.rank
        route: list[int] = []
        is_descending = False
        while switch != target.switch:
            steps = choices[is_descending][switch]
            exit_port, end = steps[_hash(source, destination, len(route)) % len(steps)]
            route.append(exit_port - port)
            is_descending = is_descending or rank[end.switch] > rank[switch]
            switch, port = end
        return (*route, target.port - port)

    def _choose_root(self) -> int:
        if not self._steps:
            return 0
        distances = [self._distances(switch) for switch in self._populated]

        def cost(switch: int) -> tuple[int, int, int]:
            to_hosts = [distance[switch] for distance in distances]
            return max(to_hosts), -min(to_hosts), switch

        return min(range(len(self._steps)), key=cost)

    def _distances(self, start: int) -> list[int]:
        """Return the distances from one switch to all switches, in cables."""
        distances = [_FAR] * len(self._steps)
        distances[start] = 0
        queue = deque([start])
        while queue:
            switch = queue.popleft()
            for _, end in self._steps[switch]:
                if distances[end.switch] == _FAR:
                    distances[end.switch] = distances[switch] + 1
                    queue.append(end.switch)
        return distances


def _hash(source: int, destination: int, step: int) -> int:
    """Hash the choice of a step; the value is equal on all machines, and its bits are evenly distributed."""
    value = (source << 32 ^ destination << 16 ^ step) + 0x9E3779B97F4A7C15 & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31

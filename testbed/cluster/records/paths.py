"""Expected impairments of a round trip between two nodes, shown to users."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from testbed.cluster.faults.injections import BOTH, DirectionName, in_force, is_down
from testbed.cluster.records.state import State
from testbed.fates.loss_models import long_run_loss
from testbed.spec.layout import Impairment, Link


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Impairments of a round trip.

    delay: sum of the one-way delays in both directions, ns. jitter: sum of their variations, ns. loss: share of round
    trips that lose a frame, not counting patterns and rules. rate: of the slowest link on the way there; 0: unlimited.
    rules: number of fault rules on the path. down: a link on the path is down.
    """

    one: str
    other: str
    delay: int
    jitter: int
    loss: float
    rate: int
    rules: int
    down: bool


def round_trip(state: State, one: str, other: str) -> RoundTrip | None:
    """Sum up the declared and injected impairments along a shortest path; None if there is no path."""
    way = _way(state, one, other)
    if way is None:
        return None
    there = [in_force(link, direction, state.injected) for link, direction in way]
    back = [in_force(link, BOTH[direction == "forward"], state.injected) for link, direction in way]
    passing = 1.0
    for side in (*there, *back):
        passing *= 1 - _loss(side.impairment)
    rates = [side.impairment.rate for side in there if side.impairment.rate]
    return RoundTrip(
        one,
        other,
        sum(side.impairment.delay for side in (*there, *back)),
        sum(side.impairment.jitter for side in (*there, *back)),
        1 - passing,
        min(rates, default=0),
        sum(len(side.whole.rules) for side in (*there, *back)),
        any(is_down(link, state.injected) for link, _ in way),
    )


def _loss(impairment: Impairment) -> float:
    burst = long_run_loss(impairment.gemodel) if impairment.gemodel else 0.0
    return 1 - (1 - impairment.loss) * (1 - burst)


def _way(state: State, one: str, other: str) -> list[tuple[Link, DirectionName]] | None:
    """A shortest path between two nodes: links with the direction in which each is crossed.

    Paths lead through switches and through nodes that route, not through other nodes.
    """
    through = {switch.name for switch in state.layout.switches}
    through |= {node.name for node in state.layout.nodes if node.forwards}
    neighbours: dict[str, list[tuple[str, Link, DirectionName]]] = {}
    for link in state.layout.links:
        neighbours.setdefault(link.a.owner, []).append((link.b.owner, link, "forward"))
        neighbours.setdefault(link.b.owner, []).append((link.a.owner, link, "backward"))
    came: dict[str, tuple[str, Link, DirectionName] | None] = {one: None}
    waiting = deque([one])
    while waiting:
        here = waiting.popleft()
        if here == other:
            way: list[tuple[Link, DirectionName]] = []
            while (step := came[here]) is not None:
                here, link, direction = step
                way.append((link, direction))
            return way[::-1]
        if here != one and here not in through:
            continue
        for there, link, direction in neighbours.get(here, ()):
            if there not in came:
                came[there] = (here, link, direction)
                waiting.append(there)
    return None


def example(state: State, links: set[str]) -> tuple[str, str] | None:
    """Two nodes whose path crosses one of these links, if any; preferably with one node at such a link."""
    concerned = [link for link in state.layout.links if link.name in links]
    nodes = [node.name for node in state.layout.nodes]
    near = [end.owner for link in concerned for end in (link.a, link.b) if end.owner in nodes]
    for one in dict.fromkeys([*near, *nodes[:8]]):
        for other in nodes[:32]:
            if other != one and any(link.name in links for link, _ in _way(state, one, other) or ()):
                return one, other
    return None

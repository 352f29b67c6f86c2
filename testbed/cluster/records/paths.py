"""Paths between nodes, and the impairments to expect on them."""

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

    delay: sum of the one-way delays in both directions, ns. jitter: sum of their jitters, ns. loss: share of round trips
    that lose a frame, not counting patterns and rules. rate: rate of the slowest link on the forward path, bit/s; 0: no link
    has a constant rate. Rate traces are not counted. rules: number of fault rules on both paths; a replay counts as one.
    down: whether a link on the path is down.
    """

    source: str
    destination: str
    delay: int
    jitter: int
    loss: float
    rate: int
    rules: int
    down: bool


def round_trip(state: State, source: str, destination: str) -> RoundTrip | None:
    """Sum up the declared and injected impairments along a shortest path; None if there is no path."""
    path = _shortest_path(state, source, destination)
    if path is None:
        return None
    outward = [in_force(link, direction, state.injected) for link, direction in path]
    returning = [in_force(link, BOTH[direction == "forward"], state.injected) for link, direction in path]
    delivered = 1.0  # share of round trips
    for side in (*outward, *returning):
        delivered *= 1 - _loss_probability(side.impairment)
    rates = [side.impairment.rate for side in outward if side.impairment.rate]
    return RoundTrip(
        source,
        destination,
        sum(side.impairment.delay for side in (*outward, *returning)),
        sum(side.impairment.jitter for side in (*outward, *returning)),
        1 - delivered,
        min(rates, default=0),
        sum(len(side.complete.rules) for side in (*outward, *returning)),
        any(is_down(link, state.injected) for link, _ in path),
    )


def _loss_probability(impairment: Impairment) -> float:
    """Return the probability that a frame is lost by chance."""
    burst = long_run_loss(impairment.gemodel) if impairment.gemodel else 0.0
    return 1 - (1 - impairment.loss) * (1 - burst)


def _shortest_path(state: State, source: str, destination: str) -> list[tuple[Link, DirectionName]] | None:
    """Find a shortest path between two nodes: links with the direction in which each is crossed; None if there is no path.

    Paths lead through switches and through nodes that route, not through other nodes.
    """
    forwarding = {switch.name for switch in state.layout.switches}
    forwarding |= {node.name for node in state.layout.nodes if node.forwards}
    neighbours: dict[str, list[tuple[str, Link, DirectionName]]] = {}
    for link in state.layout.links:
        neighbours.setdefault(link.a.owner, []).append((link.b.owner, link, "forward"))
        neighbours.setdefault(link.b.owner, []).append((link.a.owner, link, "backward"))
    reached: dict[str, tuple[str, Link, DirectionName] | None] = {source: None}
    waiting = deque([source])
    while waiting:
        node = waiting.popleft()
        if node == destination:
            path: list[tuple[Link, DirectionName]] = []
            while (step := reached[node]) is not None:
                node, link, direction = step
                path.append((link, direction))
            return path[::-1]
        if node != source and node not in forwarding:
            continue
        for neighbour, link, direction in neighbours.get(node, ()):
            if neighbour not in reached:
                reached[neighbour] = (node, link, direction)
                waiting.append(neighbour)
    return None


def example_pair(state: State, links: set[str]) -> tuple[str, str] | None:
    """Find two nodes whose path crosses one of these links, preferably nodes at the ends of such a link.

    Only these and the first nodes of the cluster are searched; None if no pair of them qualifies.
    """
    selected = [link for link in state.layout.links if link.name in links]
    nodes = [node.name for node in state.layout.nodes]
    adjacent = [end.owner for link in selected for end in (link.a, link.b) if end.owner in nodes]
    for source in dict.fromkeys([*adjacent, *nodes[:8]]):
        for destination in dict.fromkeys([*adjacent[:2], *nodes[:32]]):
            if destination != source and any(
                link.name in links for link, _ in _shortest_path(state, source, destination) or ()
            ):
                return source, destination
    return None

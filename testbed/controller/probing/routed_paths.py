"""Paths of probes through modelled switches that forward by a header of the frame: a source route, or a cell's circuit.

Such switches and the cables between them exist only inside the relay, so a probe begins and ends at a NIC. The link of a NIC
is probed in both directions by one path, there and back; a cable between switches by a path from the nearest NIC on one
side to the nearest NIC on the other side. The expectation for a path combines those for all directions on it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

from testbed import fabrics
from testbed.controller.probing.expectations import Chance, Expectation
from testbed.controller.probing.probe_plan import ProbePlan, plan_for
from testbed.fabric.interface import Path, Routing
from testbed.spec.layout import DirectionName, End, Impairment, Layout, Link

THERE_AND_BACK: Final = "there and back"
"""The direction in findings of a NIC's link, whose two directions are probed together."""

_COST: Final = 4  # processor time of the relay for a probe, as a multiple of that for a probe on Ethernet
_MAX_BURST: Final = 8  # frames; longer bursts would delay timed probes of other paths
_NO_TRAIN: Final = "a train would delay other frames on its path, or fill the buffers of a switch"
_MISROUTED: Final = "a flipped bit of the route or the cell header misroutes the frame"
_SEVERAL_DUPLICATIONS: Final = "copies of copies are not distinguished"


@dataclass(frozen=True, slots=True)
class RoutedPath:
    """A path from a NIC to a NIC. link, direction: those that this path probes. source, sink: the NICs. crossed: directions
    of links on the path. to_frame: converts a probe to a frame that takes this path."""

    link: str
    direction: str
    source: End
    sink: End
    crossed: tuple[tuple[Link, DirectionName], ...]
    to_frame: Callable[[bytes], bytes]


def routed_links(layout: Layout) -> list[Link]:
    """Return the links whose fabric can route frames along a given path."""
    routing = {
        kind for kind in {link.kind for link in layout.links if link.model} if isinstance(fabrics.fabric(kind), Routing)
    }
    return [link for link in layout.links if link.kind in routing]


def routed_paths(layout: Layout, chosen: Sequence[Link]) -> list[RoutedPath]:
    """Return paths that probe these links, which must be among `routed_links`. A cable has no path if there is no NIC on one
    of its sides, or if the fabric has no route across it."""
    graph = _Graph(layout)
    paths: list[RoutedPath | None] = []
    for link in chosen:
        nics = [end for end in (link.a, link.b) if not graph.is_switch(end)]
        if len(nics) == 2:
            paths += [graph.find_path(link, "forward", [link.a]), graph.find_path(link, "backward", [link.b])]
            continue
        if nics:
            paths.append(graph.find_path(link, THERE_AND_BACK, [nics[0], graph.other_end(nics[0])]))
            continue
        for direction, start in (("forward", link.a), ("backward", link.b)):
            upstream = graph.ends_to_nic(start, link)
            downstream = graph.ends_to_nic(graph.other_end(start), link)
            if upstream and downstream:
                from_nic = [graph.other_end(end) for end in reversed(upstream)]
                paths.append(graph.find_path(link, direction, [*from_nic, start, *downstream]))
    return [path for path in paths if path is not None]


class _Graph:
    """The cables of a layout. A list of ends describes a path: a frame leaves NICs and switches by these ends."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._switches = layout.simulated_switches().keys()
        self._cables: dict[End, tuple[Link, DirectionName, End]] = {}
        self._ports: dict[str, list[End]] = {}
        for link in layout.links:
            self._cables[link.a] = link, "forward", link.b
            self._cables[link.b] = link, "backward", link.a
        for end in self._cables:
            self._ports.setdefault(end.owner, []).append(end)

    def is_switch(self, end: End) -> bool:
        return end.owner in self._switches

    def other_end(self, end: End) -> End:
        return self._cables[end][2]

    def ends_to_nic(self, start: End, avoided: Link) -> list[End]:
        """Return the ends on the shortest path from the switch at `start` to a NIC that avoids a cable; empty if there is
        none."""
        visited, queue = {start.owner}, deque[tuple[str, list[End]]]([(start.owner, [])])
        while queue:
            switch, ends = queue.popleft()
            for end in self._ports[switch]:
                link, _, far_end = self._cables[end]
                if link is avoided or far_end.owner in visited:
                    continue
                if not self.is_switch(far_end):
                    return [*ends, end]
                visited.add(far_end.owner)
                queue.append((far_end.owner, [*ends, end]))
        return []

    def find_path(self, link: Link, direction: str, ends: Sequence[End]) -> RoutedPath | None:
        """Return the path along these ends, from NIC to NIC; None if the fabric has no such route."""
        crossed = tuple((self._cables[end][0], self._cables[end][1]) for end in ends)
        hops = tuple(
            (outgoing.owner, int(self.other_end(previous).port), int(outgoing.port)) for previous, outgoing in pairwise(ends)
        )  # fmt: skip
        fabric = fabrics.fabric(link.kind)
        assert isinstance(fabric, Routing)
        source, sink = ends[0], self.other_end(ends[-1])
        route = Path(source.owner, sink.owner, hops)
        if not fabric.has_route(self._layout, route):
            return None
        return RoutedPath(link.name, direction, source, sink, crossed, partial(fabric.build_frame, self._layout, route))


def combine(expectations: Sequence[tuple[Impairment, Expectation]]) -> Expectation:
    """Combine the expectations of all directions on a path. Switches cut through, so a frame's transmission time counts
    once, at the rate of the slowest cable."""
    delay = sum(impairment.delay for impairment, _ in expectations)
    frame_time = max(expected.delays[0] - impairment.delay for impairment, expected in expectations)
    crossed = [expected for _, expected in expectations]
    corrupt = _at_least_one(expected.corrupt for expected in crossed)
    duplicates = [expected.duplicate for expected in crossed if expected.duplicate.share]
    loss, duplicate = _at_least_one(expected.loss for expected in crossed), _at_least_one(duplicates)
    if corrupt.share:
        corrupt, loss = (
            replace(corrupt, unpredictable=_MISROUTED),
            replace(loss, unpredictable=loss.unpredictable or _MISROUTED),
        )
    if len(duplicates) > 1:
        duplicate = replace(duplicate, unpredictable=_SEVERAL_DUPLICATIONS)
    return Expectation(
        (delay + frame_time,), loss, corrupt, duplicate, Chance(), _min_rate(crossed), rate_unpredictable=_NO_TRAIN
    )


def plan_on_path(expectation: Expectation, paths: int, mtu: int) -> ProbePlan:
    """Plan the probes of a path. paths: number of paths that are probed at the same time."""
    impairment = Impairment(rate=expectation.rate, delay=expectation.delays[0])
    plan = plan_for(impairment, expectation, _COST * paths, mtu)
    return replace(plan, burst=min(plan.burst, _MAX_BURST), train=None, no_train=_NO_TRAIN)


def _at_least_one(chances: Iterable[Chance]) -> Chance:
    """Return the share of frames that at least one of independent chances hits."""
    independent = list(chances)
    missed = math.prod(1 - chance.share for chance in independent)
    return Chance(
        1 - missed if any(chance.share for chance in independent) else 0.0,
        max((chance.inflation for chance in independent), default=1.0),
        next((chance.unpredictable for chance in independent if chance.unpredictable), ""),
    )


def _min_rate(expectations: Iterable[Expectation]) -> int:
    return min((expected.rate for expected in expectations if expected.rate), default=0)

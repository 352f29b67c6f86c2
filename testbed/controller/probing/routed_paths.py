"""Paths of probes through modelled switches that forward by something of the frame: a source route, a cell's circuit.

Such switches and the cables between them exist only inside the relay, so a probe begins and ends at a NIC: the link of a NIC
is crossed there and back, a cable between switches on the way from the nearest NIC on one side to the nearest on the
other. What is expected of a probe is what all directions on its way do together.
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
from testbed.controller.probing.probe_plan import Plan, plan_for
from testbed.fabric.interface import Routing, Way
from testbed.spec.layout import DirectionName, End, Impairment, Layout, Link

THERE_AND_BACK: Final = "there and back"
"""The direction in findings of a NIC's link, whose two directions are probed together."""

_COST: Final = 4  # probes on Ethernet that take the relay as long as one on such a path
_MAX_BURST: Final = 8  # frames: more would hold up the timed probes of other paths
_NO_TRAIN: Final = "a train would hold up the frames on its way, or fill the buffers of a switch"
_ASTRAY: Final = "a flipped bit may be one of the route or the cell's header, and the frame goes astray"
_TWICE: Final = "copies of copies are not distinguished"


@dataclass(frozen=True, slots=True)
class RoutedPath:
    """A path from a NIC to a NIC. link, direction: what it is to probe. source, sink: the NICs. crossed: the directions of
    links on the way. along: makes a frame that takes it of a probe."""

    link: str
    direction: str
    source: End
    sink: End
    crossed: tuple[tuple[Link, DirectionName], ...]
    along: Callable[[bytes], bytes]


def routed_links(layout: Layout) -> list[Link]:
    """Return the links at switches whose fabric can lead frames along a way."""
    routing = {name for name, kind in layout.modelled().items() if isinstance(fabrics.fabric(kind.name), Routing)}
    return [link for link in layout.links if routing & {link.a.owner, link.b.owner}]


def routed_paths(layout: Layout, chosen: Sequence[Link]) -> list[RoutedPath]:
    """Return the paths that probe these links, which are at switches whose fabric leads frames. A cable beyond which there
    is no NIC has none, nor has one that no frame from one NIC to the next crosses."""
    graph = _Graph(layout)
    paths: list[RoutedPath | None] = []
    for link in chosen:
        nics = [end for end in (link.a, link.b) if not graph.is_switch(end)]
        if nics:
            paths.append(graph.path(link, THERE_AND_BACK, [nics[0], graph.beyond(nics[0])]))
            continue
        for direction, start in (("forward", link.a), ("backward", link.b)):
            before, behind = graph.nearest(start, link), graph.nearest(graph.beyond(start), link)
            if before and behind:
                far_ends = [graph.beyond(end) for end in reversed(before)]
                paths.append(graph.path(link, direction, [*far_ends, start, *behind]))
    return [path for path in paths if path is not None]


class _Graph:
    """The cables of a layout. A way is the list of the ends by which a frame leaves NICs and switches."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kinds = layout.modelled()
        self._cables: dict[End, tuple[Link, DirectionName, End]] = {}
        self._ports: dict[str, list[End]] = {}
        for link in layout.links:
            self._cables[link.a] = link, "forward", link.b
            self._cables[link.b] = link, "backward", link.a
        for end in self._cables:
            self._ports.setdefault(end.owner, []).append(end)

    def is_switch(self, end: End) -> bool:
        return end.owner in self._kinds

    def beyond(self, end: End) -> End:
        return self._cables[end][2]

    def nearest(self, start: End, avoided: Link) -> list[End]:
        """Return the shortest way from the switch at `start` to a NIC, without that cable; empty if there is none."""
        seen, ways = {start.owner}, deque[tuple[str, list[End]]]([(start.owner, [])])
        while ways:
            switch, way = ways.popleft()
            for end in self._ports[switch]:
                link, _, other = self._cables[end]
                if link is avoided or other.owner in seen:
                    continue
                if not self.is_switch(other):
                    return [*way, end]
                seen.add(other.owner)
                ways.append((other.owner, [*way, end]))
        return []

    def path(self, link: Link, direction: str, way: Sequence[End]) -> RoutedPath | None:
        """Make the path of a way that begins at a NIC and ends at one; None: no frame takes it."""
        crossed = tuple((self._cables[end][0], self._cables[end][1]) for end in way)
        hops = tuple(
            (leaves.owner, int(self.beyond(came).port), int(leaves.port)) for came, leaves in pairwise(way)
        )  # fmt: skip
        fabric = fabrics.fabric(self._kinds[way[1].owner].name)
        assert isinstance(fabric, Routing)
        source, sink = way[0], self.beyond(way[-1])
        taken = Way(source.owner, sink.owner, hops)
        if not fabric.leads(self._layout, taken):
            return None
        return RoutedPath(link.name, direction, source, sink, crossed, partial(fabric.along, self._layout, taken))


def together(expectations: Sequence[tuple[Impairment, Expectation]]) -> Expectation:
    """Combine the expectations of all directions on a way. A frame's bytes take the time of the slowest cable, once: its
    head is cut through."""
    delay = sum(impairment.delay for impairment, _ in expectations)
    on_wire = max(expected.delays[0] - impairment.delay for impairment, expected in expectations)
    parts = [expected for _, expected in expectations]
    corrupt = _at_least_one(part.corrupt for part in parts)
    duplicates = [part.duplicate for part in parts if part.duplicate.share]
    loss, duplicate = _at_least_one(part.loss for part in parts), _at_least_one(duplicates)
    if corrupt.share:
        corrupt, loss = (
            replace(corrupt, unpredictable=_ASTRAY),
            replace(loss, unpredictable=loss.unpredictable or _ASTRAY),
        )
    if len(duplicates) > 1:
        duplicate = replace(duplicate, unpredictable=_TWICE)
    return Expectation(
        (delay + on_wire,), loss, corrupt, duplicate, Chance(), _slowest(parts), rate_unpredictable=_NO_TRAIN
    )


def plan_on_path(expectation: Expectation, paths: int, mtu: int) -> Plan:
    """Plan the probes of one of `paths` paths."""
    impairment = Impairment(rate=expectation.rate, delay=expectation.delays[0])
    plan = plan_for(impairment, expectation, _COST * paths, mtu)
    return replace(plan, burst=min(plan.burst, _MAX_BURST), train=None, no_train=_NO_TRAIN)


def _at_least_one(chances: Iterable[Chance]) -> Chance:
    """Return the chance that at least one of independent chances hits."""
    known = list(chances)
    missed = math.prod(1 - chance.share for chance in known)
    return Chance(
        1 - missed if any(chance.share for chance in known) else 0.0,
        max((chance.inflation for chance in known), default=1.0),
        next((chance.unpredictable for chance in known if chance.unpredictable), ""),
    )


def _slowest(parts: Iterable[Expectation]) -> int:
    return min((part.rate for part in parts if part.rate), default=0)

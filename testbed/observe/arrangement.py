"""Arrangement of a cluster's picture: a position for each node and switch, and curves for links that would cover another.

Nodes are in rows under their switch, switches in layers above; a switch's layer is its distance to the nearest node, so
that racks, fat trees and stars look as expected. Many nodes of a single switch surround it in ellipses, each on a ray of
its own, so that no link crosses a node. Nodes without a switch form a circle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Position = tuple[float, float]

SWITCH: Final = (74.0, 30.0)
"""Size of a switch: width, height."""

_GAP: Final = 22.0
_ROW: Final = 480.0  # width that few nodes share
_LAYER: Final = 84.0
_ONE_ROW: Final = 10  # nodes of a single switch up to which they form a row
_ON_AN_ELLIPSE: Final = 16  # nodes of a single switch up to which one ellipse is enough
_IN_A_ROW: Final = 16  # nodes of several switches up to which they form a row, without a second one between
_STRETCH: Final = 1.75  # width of an ellipse to its height: pictures are wider than high
_PASSAGE: Final = 8.0  # width that a link needs between two nodes
_PARALLEL: Final = 30.0  # distance of the middles of links between the same two places


@dataclass(frozen=True, slots=True)
class Graph:
    """A cluster as a graph. links: the two elements that each joins."""

    nodes: Sequence[str]
    switches: Sequence[str]
    links: Sequence[tuple[str, str]]

    def neighbours(self) -> dict[str, list[str]]:
        neighbours: dict[str, list[str]] = {}
        for a, b in self.links:
            neighbours.setdefault(a, []).append(b)
            neighbours.setdefault(b, []).append(a)
        return neighbours


def arrange(graph: Graph, node_size: tuple[float, float]) -> dict[str, Position]:
    """Return the centres of all nodes and switches, by name. node_size: width and height of a node."""
    if not graph.switches:
        return _circle(graph.nodes, node_size[0])
    if len(graph.switches) == 1 and len(graph.nodes) > _ONE_ROW:
        return {graph.switches[0]: (0.0, 0.0), **_ellipses(graph.nodes, node_size)}
    return _layered(graph, node_size)


def curves(graph: Graph, places: Mapping[str, Position]) -> Iterator[Position | None]:
    """Yield for each link the control point of its quadratic Bézier curve, None for a straight one. Links between the
    same two elements are side by side; a horizontal one passes above what is between its ends."""
    pairs = [tuple(sorted(link)) for link in graph.links]
    total: dict[tuple[str, ...], int] = {}
    for pair in pairs:
        total[pair] = total.get(pair, 0) + 1
    seen: dict[tuple[str, ...], int] = {}
    for (a, b), pair in zip(graph.links, pairs, strict=True):
        number = seen[pair] = seen.get(pair, -1) + 1
        (x1, y1), (x2, y2) = places[pair[0]], places[pair[1]]
        aside = 2 * _PARALLEL * (number - (total[pair] - 1) / 2)
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        middle = (x1 + x2) / 2 - aside * (y2 - y1) / length, (y1 + y2) / 2 + aside * (x2 - x1) / length
        if y1 == y2 and _is_something_between(places, a, b):
            yield middle[0], middle[1] - 30.0 - abs(x2 - x1) * 0.12
        else:
            yield middle if aside else None


def _is_something_between(places: Mapping[str, Position], a: str, b: str) -> bool:
    (x1, y), (x2, _) = places[a], places[b]
    left, right = min(x1, x2), max(x1, x2)
    return any(left < x < right and y == height for name, (x, height) in places.items() if name not in (a, b))


def _ellipses(names: Sequence[str], size: tuple[float, float]) -> dict[str, Position]:
    """Place nodes around a switch in the origin: on rays, by turns on an inner and an outer ellipse, so that the link of an
    outer node passes between two inner ones."""
    rings = 1 if len(names) <= _ON_AN_ELLIPSE else 2
    step = 2 * math.pi / (len(names) + len(names) % rings)
    width, height = size[0] / rings + _PASSAGE, size[1] / rings + _PASSAGE  # that a ray needs
    b = max(3.0 * SWITCH[1], height / step)
    a = max(_STRETCH * b, width / step)
    outer = 1 + max((size[0] + _PASSAGE) / a, (size[1] + _PASSAGE) / b)
    places = {}
    for number, name in enumerate(names):
        scale = outer if number % rings else 1.0
        angle = number * step - math.pi / 2
        places[name] = scale * a * math.cos(angle), scale * b * math.sin(angle)
    return places


def _circle(names: Sequence[str], width: float) -> dict[str, Position]:
    if len(names) <= 2:
        return {name: (number * 3.6 * width, 0.0) for number, name in enumerate(names)}
    radius = max(90.0, len(names) * (width + _GAP) / (2 * math.pi))
    turns = [2 * math.pi * number / len(names) - math.pi / 2 for number in range(len(names))]
    return {name: (radius * math.cos(turn), radius * math.sin(turn)) for name, turn in zip(names, turns, strict=True)}


def _layered(graph: Graph, size: tuple[float, float]) -> dict[str, Position]:
    neighbours = graph.neighbours()
    layers = _layers(graph, neighbours)
    under: dict[str, list[str]] = {switch: [] for switch in graph.switches}
    for node in graph.nodes:  # under its first switch
        home = next((owner for owner in neighbours.get(node, ()) if owner in under), graph.switches[0])
        under[home].append(node)
    rows = 1 if len(graph.nodes) <= _IN_A_ROW else 2
    step = max(size[0] + _GAP, _ROW / max(4, len(graph.nodes))) if rows == 1 else (size[0] + 2 * _PASSAGE) / rows
    widths = {switch: max(len(under[switch]) * step + _GAP, SWITCH[0] + 2 * _GAP) for switch in layers[0]}
    height = max(_LAYER, 0.6 * sum(widths.values()) / (len(layers) + 1))
    places: dict[str, Position] = {}
    left = 0.0
    for switch in layers[0]:
        middle = left + widths[switch] / 2
        places[switch] = (middle, 0.0)
        for number, name in enumerate(under[switch]):
            x = middle + (number - (len(under[switch]) - 1) / 2) * step
            places[name] = (x, height + number % rows * (size[1] + 2 * _PASSAGE))
        left += widths[switch]
    for number, layer in enumerate(layers[1:], 1):
        _spread(layer, neighbours, places, left, -number * height)
    return places


def _layers(graph: Graph, neighbours: Mapping[str, Sequence[str]]) -> list[list[str]]:
    distance = dict.fromkeys(graph.nodes, 0)
    waiting = list(distance)
    for name in waiting:
        for neighbour in neighbours.get(name, ()):
            if neighbour not in distance:
                distance[neighbour] = distance[name] + 1
                waiting.append(neighbour)
    deepest = max((distance.get(switch, 1) for switch in graph.switches), default=1)
    return [[name for name in graph.switches if distance.get(name, 1) == depth] for depth in range(1, deepest + 1)]


def _spread(
    layer: Sequence[str],
    neighbours: Mapping[str, Sequence[str]],
    places: dict[str, Position],
    width: float,
    y: float,
) -> None:
    """Place a layer's switches above the middle of what is below them, without overlap."""

    def middle(switch: str) -> float:
        below = [places[neighbour][0] for neighbour in neighbours.get(switch, ()) if neighbour in places]
        return sum(below) / len(below) if below else width / 2

    step = max(SWITCH[0] + 2 * _GAP, width / max(1, len(layer)))
    first = width / 2 - step * (len(layer) - 1) / 2
    for number, switch in enumerate(sorted(layer, key=middle)):
        places[switch] = (first + number * step, y)

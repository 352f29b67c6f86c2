"""Layout of a cluster's topology plot: a position for each node and switch, and curves for links that would overlap.

Nodes are in rows under their switch, switches in layers above; a switch's layer is its distance to the nearest node, so
that racks, fat trees and stars look as expected. If a single switch has many nodes, they surround it in ellipses, each on a
separate ray, so that no link crosses a node. In a cluster without switches the nodes form a circle. Lengths are in units of
the SVG image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Position = tuple[float, float]

SWITCH: Final = (74.0, 30.0)
"""Size of a switch: width, height."""

_GAP: Final = 22.0  # between elements side by side
_MIN_ROW_WIDTH: Final = 480.0  # of a row of four nodes or more
_MIN_LAYER_HEIGHT: Final = 84.0
_MAX_STAR_ROW: Final = 10  # maximum of nodes in a row under a single switch
_MAX_ON_ELLIPSE: Final = 16  # maximum of nodes on one ellipse
_MAX_IN_ROW: Final = 16  # maximum of nodes of several switches in one row; more form two rows
_ASPECT_RATIO: Final = 1.75  # width of an ellipse to its height: pictures are wider than high
_LINK_CLEARANCE: Final = 8.0  # width that a link needs between two nodes
_PARALLEL_SPACING: Final = 30.0  # distance between the midpoints of links that have the same ends


@dataclass(frozen=True, slots=True)
class Graph:
    """A cluster as a graph. links: the two ends of each link."""

    nodes: Sequence[str]
    switches: Sequence[str]
    links: Sequence[tuple[str, str]]

    def neighbours(self) -> dict[str, list[str]]:
        """Return the elements that each element is linked to, by name."""
        neighbours: dict[str, list[str]] = {}
        for a, b in self.links:
            neighbours.setdefault(a, []).append(b)
            neighbours.setdefault(b, []).append(a)
        return neighbours


def arrange(graph: Graph, node_size: tuple[float, float]) -> dict[str, Position]:
    """Return the centres of all nodes and switches, by name. node_size: width and height of a node."""
    if not graph.switches:
        return _circle(graph.nodes, node_size[0])
    if len(graph.switches) == 1 and len(graph.nodes) > _MAX_STAR_ROW:
        return {graph.switches[0]: (0.0, 0.0), **_ellipses(graph.nodes, node_size)}
    return _layered(graph, node_size)


def curves(graph: Graph, positions: Mapping[str, Position]) -> Iterator[Position | None]:
    """Yield for each link the control point of its quadratic Bézier curve; None for a straight link. Links between the same
    two elements are drawn side by side. A horizontal link passes above the elements between its ends."""
    pairs = [tuple(sorted(link)) for link in graph.links]
    total: dict[tuple[str, ...], int] = {}
    for pair in pairs:
        total[pair] = total.get(pair, 0) + 1
    counts_so_far: dict[tuple[str, ...], int] = {}
    for (a, b), pair in zip(graph.links, pairs, strict=True):
        number = counts_so_far[pair] = counts_so_far.get(pair, -1) + 1
        (x1, y1), (x2, y2) = positions[pair[0]], positions[pair[1]]
        shift = 2 * _PARALLEL_SPACING * (number - (total[pair] - 1) / 2)
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        middle = (x1 + x2) / 2 - shift * (y2 - y1) / length, (y1 + y2) / 2 + shift * (x2 - x1) / length
        if y1 == y2 and _is_blocked(positions, a, b):
            yield middle[0], middle[1] - 30.0 - abs(x2 - x1) * 0.12
        else:
            yield middle if shift else None


def _is_blocked(positions: Mapping[str, Position], a: str, b: str) -> bool:
    """Whether another element lies on the horizontal line between two elements."""
    (x1, link_y), (x2, _) = positions[a], positions[b]
    left_edge, right_edge = min(x1, x2), max(x1, x2)
    return any(left_edge < x < right_edge and y == link_y for name, (x, y) in positions.items() if name not in (a, b))


def _ellipses(names: Sequence[str], size: tuple[float, float]) -> dict[str, Position]:
    """Place nodes around a switch at the origin, each on its ray. Many nodes are alternately on an inner and an outer
    ellipse, so that the link of an outer node passes between two inner nodes."""
    rings = 1 if len(names) <= _MAX_ON_ELLIPSE else 2
    step = 2 * math.pi / (len(names) + len(names) % rings)
    width, height = size[0] / rings + _LINK_CLEARANCE, size[1] / rings + _LINK_CLEARANCE  # of a ray
    b = max(3.0 * SWITCH[1], height / step)
    a = max(_ASPECT_RATIO * b, width / step)
    outer = 1 + max((size[0] + _LINK_CLEARANCE) / a, (size[1] + _LINK_CLEARANCE) / b)
    positions = {}
    for number, name in enumerate(names):
        scale = outer if number % rings else 1.0
        angle = number * step - math.pi / 2
        positions[name] = scale * a * math.cos(angle), scale * b * math.sin(angle)
    return positions


def _circle(names: Sequence[str], width: float) -> dict[str, Position]:
    """Place nodes on a circle; one or two nodes on a line. width: of a node."""
    if len(names) <= 2:
        return {name: (number * 3.6 * width, 0.0) for number, name in enumerate(names)}
    radius = max(90.0, len(names) * (width + _GAP) / (2 * math.pi))
    angles = [2 * math.pi * number / len(names) - math.pi / 2 for number in range(len(names))]
    return {
        name: (radius * math.cos(angle), radius * math.sin(angle)) for name, angle in zip(names, angles, strict=True)
    }


def _layered(graph: Graph, size: tuple[float, float]) -> dict[str, Position]:
    neighbours = graph.neighbours()
    layers = _layers(graph, neighbours)
    nodes_of: dict[str, list[str]] = {switch: [] for switch in graph.switches}
    for node in graph.nodes:  # under its first switch
        switch = next((owner for owner in neighbours.get(node, ()) if owner in nodes_of), graph.switches[0])
        nodes_of[switch].append(node)
    rows = 1 if len(graph.nodes) <= _MAX_IN_ROW else 2
    step = (
        max(size[0] + _GAP, _MIN_ROW_WIDTH / max(4, len(graph.nodes)))
        if rows == 1
        else (size[0] + 2 * _LINK_CLEARANCE) / rows
    )
    widths = {switch: max(len(nodes_of[switch]) * step + _GAP, SWITCH[0] + 2 * _GAP) for switch in layers[0]}
    height = max(_MIN_LAYER_HEIGHT, 0.6 * sum(widths.values()) / (len(layers) + 1))
    positions: dict[str, Position] = {}
    left_edge = 0.0
    for switch in layers[0]:
        middle = left_edge + widths[switch] / 2
        positions[switch] = (middle, 0.0)
        for number, name in enumerate(nodes_of[switch]):
            x = middle + (number - (len(nodes_of[switch]) - 1) / 2) * step
            positions[name] = (x, height + number % rows * (size[1] + 2 * _LINK_CLEARANCE))
        left_edge += widths[switch]
    for number, layer in enumerate(layers[1:], 1):
        _spread(layer, neighbours, positions, left_edge, -number * height)
    return positions


def _layers(graph: Graph, neighbours: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the switches by their distance to the nearest node."""
    distance = dict.fromkeys(graph.nodes, 0)
    queue = list(distance)
    for name in queue:
        for neighbour in neighbours.get(name, ()):
            if neighbour not in distance:
                distance[neighbour] = distance[name] + 1
                queue.append(neighbour)
    height = max((distance.get(switch, 1) for switch in graph.switches), default=1)
    return [[name for name in graph.switches if distance.get(name, 1) == layer] for layer in range(1, height + 1)]


def _spread(
    layer: Sequence[str],
    neighbours: Mapping[str, Sequence[str]],
    positions: dict[str, Position],
    width: float,
    y: float,
) -> None:
    """Place a layer's switches above the middle of the elements below them, without overlap."""

    def middle(switch: str) -> float:
        below = [positions[neighbour][0] for neighbour in neighbours.get(switch, ()) if neighbour in positions]
        return sum(below) / len(below) if below else width / 2

    step = max(SWITCH[0] + 2 * _GAP, width / max(1, len(layer)))
    first = width / 2 - step * (len(layer) - 1) / 2
    for number, switch in enumerate(sorted(layer, key=middle)):
        positions[switch] = (first + number * step, y)

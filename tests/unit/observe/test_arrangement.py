"""Arrangement of clusters in pictures: elements do not overlap, and no link of a star passes behind another node."""

from __future__ import annotations

import math

import pytest

from testbed.observe.arrangement import Graph, arrange, curves

NODE = (38.0, 26.0)
SIZES = [1, 2, 10, 11, 16, 17, 44, 45, 46, 47, 60, 89, 97, 100, 101, 133, 200, 1000]


def star(nodes: int) -> Graph:
    names = [f"n{number}" for number in range(1, nodes + 1)]
    return Graph(names, ["s1"], [(name, "s1") for name in names])


def dumbbell(nodes: int) -> Graph:
    names = [f"n{number}" for number in range(nodes)]
    links = [(name, "left" if number < nodes // 2 else "right") for number, name in enumerate(names)]
    return Graph(names, ["left", "right"], [*links, ("left", "right")])


def overlaps(graph: Graph) -> list[tuple[str, str]]:
    positions = sorted(arrange(graph, NODE).items(), key=lambda item: item[1])
    overlapping = []
    for index, (name, (x, y)) in enumerate(positions):
        for other_name, (other_x, other_y) in positions[index + 1 :]:
            if other_x - x > NODE[0]:
                break
            if abs(other_y - y) < NODE[1]:
                overlapping.append((name, other_name))
    return overlapping


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("shape", [star, dumbbell])
def test_no_node_covers_another(shape, nodes: int) -> None:
    assert overlaps(shape(nodes)) == []


@pytest.mark.parametrize("nodes", SIZES)
def test_no_link_of_a_star_passes_behind_another_node(nodes: int) -> None:
    """A link that crosses the middle half of a node's box would look like a link of that node."""
    graph = star(nodes)
    positions = arrange(graph, NODE)
    centre = positions.pop("s1")
    for name, (x, y) in positions.items():
        dx, dy = x - centre[0], y - centre[1]
        length = math.hypot(dx, dy)
        for other_name, (other_x, other_y) in positions.items():
            projection = ((other_x - centre[0]) * dx + (other_y - centre[1]) * dy) / length
            distance = abs((other_x - centre[0]) * dy - (other_y - centre[1]) * dx) / length
            assert other_name == name or not 0 < projection < length or distance > NODE[1] / 4, (name, other_name)


def test_a_hundred_nodes_are_readable_on_a_screen() -> None:
    columns, rows = zip(*arrange(star(100), NODE).values(), strict=True)
    assert max(columns) - min(columns) < 1400
    assert max(rows) - min(rows) < 800


def test_links_between_the_same_two_elements_are_side_by_side() -> None:
    graph = Graph(["a"], ["s"], [("a", "s"), ("s", "a"), ("a", "s")])
    curve_list = list(curves(graph, arrange(graph, NODE)))
    assert curve_list[1] is None  # the middle link is straight
    assert curve_list[0] is not None
    assert curve_list[2] is not None
    assert math.dist(curve_list[0], curve_list[2]) == pytest.approx(120.0)


def test_a_horizontal_link_passes_above_elements_between_its_ends() -> None:
    graph = Graph([], ["s1", "s2", "s3"], [("s1", "s2"), ("s2", "s3"), ("s1", "s3")])
    positions = {"s1": (0.0, 0.0), "s2": (100.0, 0.0), "s3": (200.0, 0.0)}
    first, second, far = curves(graph, positions)
    assert first is second is None
    assert far is not None
    assert far[1] < -30.0


def test_switches_of_a_tree_are_in_layers_above_their_nodes() -> None:
    nodes = ["a", "b", "c", "d"]
    links = [("a", "e1"), ("b", "e1"), ("c", "e2"), ("d", "e2"), ("e1", "top"), ("e2", "top")]
    positions = arrange(Graph(nodes, ["top", "e1", "e2"], links), NODE)
    heights = [positions[name][1] for name in ("top", "e1", "a")]
    assert heights == sorted(heights)
    assert len({*heights}) == 3
    assert positions["e1"][0] < positions["top"][0] < positions["e2"][0]


def test_an_element_without_a_link_has_a_position() -> None:
    assert set(arrange(Graph(["a", "b"], ["s"], []), NODE)) == {"a", "b", "s"}
    assert set(arrange(Graph(["a", "b", "c"], [], []), NODE)) == {"a", "b", "c"}
    assert arrange(Graph([], [], []), NODE) == {}

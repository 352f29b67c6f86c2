"""Placement of nodes on machines: a small cut, the machines' capacity, pins and exclusions."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

import pytest

from testbed.errors import UnsupportedError
from testbed.machines import node_placement
from testbed.machines.node_placement import Capacity, Constraints, Placement, place
from testbed.spec.layout import End, Impairment, Layout, Link, Node, Switch
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]

GIGABIT = 1_000_000_000
THREE = {name: Capacity(4, 2**34) for name in "abc"}


def cluster(links: list[tuple[str, str, int]], shares: dict[str, float] | None = None, memory: int = 0) -> Layout:
    """Return nodes and links with rates, without NICs, which placement does not need."""
    names = sorted({end for a, b, _ in links for end in (a, b)} | set(shares or {}))
    nodes = tuple(Node(name, (), cpu_share=(shares or {}).get(name, 0.0), memory=memory) for name in names)
    ends = (
        Link(End(a, f"{i}"), End(b, f"{i}"), forward=Impairment(rate=rate), backward=Impairment(rate=rate))
        for i, (a, b, rate) in enumerate(links)
    )
    return Layout("cluster", 1, nodes, (), tuple(ends))


def sizes(placement: Placement) -> list[int]:
    return sorted(len(placement.on(machine)) for machine in set(placement.machine_of.values()))


def test_cliques_stay_together_and_their_light_links_are_cut() -> None:
    links = [(f"{c}{i}", f"{c}{j}", GIGABIT) for c in "xyz" for i in range(4) for j in range(i)]
    links += [("x0", "y0", GIGABIT // 10), ("y1", "z0", GIGABIT // 10)]
    random.Random(1).shuffle(links)
    placement = place(cluster(links), THREE)
    assert sizes(placement) == [4, 4, 4]
    assert sorted(placement.cut) == sorted(link for link in placement.cut if link[0] != link.partition("--")[2][0])
    assert placement.rate == 2 * 2 * (GIGABIT // 10)


def test_a_chain_is_cut_once_for_each_further_machine() -> None:
    chain = cluster([(f"n{i:02}", f"n{i + 1:02}", GIGABIT) for i in range(29)])
    placement = place(chain, THREE)
    assert sizes(placement) == [10, 10, 10]
    assert len(placement.cut) == 2


def test_nodes_are_placed_in_proportion_to_cores() -> None:
    star = resolve(Description.star(40))
    placement = place(star, {"large": Capacity(6, 2**34), "small": Capacity(2, 2**34)})
    nodes = {machine: sum(name.startswith("n") for name in placement.on(machine)) for machine in ("large", "small")}
    assert nodes["large"] + nodes["small"] == 40
    assert 28 <= nodes["large"] <= 32
    assert len(placement.cut) == min(nodes.values()) if "s1" in placement.on("large") else nodes["large"]


def test_declared_cores_and_memory_are_kept() -> None:
    shares = {f"n{i}": 1.5 for i in range(6)}
    placement = place(cluster([("n0", f"n{i}", GIGABIT) for i in range(1, 6)], shares, memory=2**30), THREE)
    assert sizes(placement) == [2, 2, 2]
    with pytest.raises(UnsupportedError, match=r"requests 15 cores, and the machines have 12 in total"):
        place(cluster([], {f"n{i}": 1.5 for i in range(10)}), THREE)
    with pytest.raises(UnsupportedError, match=r"fits on no machine that is allowed for it"):
        place(cluster([], {"n1": 5.0}), THREE)
    with pytest.raises(UnsupportedError, match=r"fits on no machine that is allowed for it"):
        place(cluster([], {"n1": 0.5}, memory=2**40), THREE)


def test_pins_and_exclusions_override_the_cut() -> None:
    links = [(f"n{i}", f"n{j}", GIGABIT) for i in range(6) for j in range(i)]
    placement = place(cluster(links), THREE, Constraints({"n0": "a", "n1": "c"}, {"n2": {"a", "b"}, "n3": {"c"}}))
    machine_of = placement.machine_of
    assert (machine_of["n0"], machine_of["n1"], machine_of["n2"]) == ("a", "c", "c")
    assert machine_of["n3"] != "c"
    with pytest.raises(UnsupportedError, match="the pins and exclusions leave no machine for it"):
        place(cluster(links), THREE, Constraints({"n0": "a"}, {"n0": {"a"}}))


def test_indivisible_groups_stay_together() -> None:
    direct = Layout(
        "cluster", 1, tuple(Node(name, ()) for name in ("n1", "n2", "n3", "n4")),
        (Switch("m1", "myrinet", (0, 1)),),
        (
            Link(End("n1", "0"), End("n2", "0"), datapath="direct"),
            Link(End("n3", "0"), End("m1", "0"), kind="myrinet"),
            Link(End("n4", "0"), End("m1", "1"), kind="myrinet"),
        ),
    )  # fmt: skip
    placement = place(direct, THREE)
    machine_of = placement.machine_of
    assert machine_of["n1"] == machine_of["n2"]
    assert machine_of["n3"] == machine_of["m1"] == machine_of["n4"]
    assert placement.cut == ()
    with pytest.raises(UnsupportedError, match="inseparable"):
        place(direct, THREE, Constraints({"n3": "a", "n4": "b"}))


def test_a_direct_link_is_cut_where_pins_or_exclusions_divide_its_ends() -> None:
    direct = Layout(
        "cluster", 1, tuple(Node(name, ()) for name in ("n1", "n2", "n3")), (),
        tuple(Link(End("n1", "0"), End(name, "0"), datapath="direct") for name in ("n2", "n3")),
    )  # fmt: skip
    assert place(direct, THREE).cut == ()
    pinned = place(direct, THREE, Constraints({"n1": "a", "n2": "b"}))
    assert (pinned.machine_of, pinned.cut) == ({"n1": "a", "n2": "b", "n3": "a"}, (direct.links[0].name,))
    excluded = place(direct, THREE, Constraints({"n1": "a"}, {"n3": {"a"}}))
    assert excluded.machine_of["n2"] == "a" != excluded.machine_of["n3"]


def test_placement_is_deterministic_and_fast_for_a_thousand_nodes() -> None:
    star = resolve(Description.star(1000))
    assert place(star, THREE) == place(star, THREE)


def racks(nodes: int, racks: int) -> Layout:
    """Return nodes on switches in a row; nodes with consecutive numbers are on different switches."""
    ports = tuple(range(-(-nodes // racks) + 2))
    links = [Link(End(f"n{i}", "eth0"), End(f"s{i % racks}", f"{i // racks}")) for i in range(nodes)]
    links += [Link(End(f"s{i}", "up"), End(f"s{i + 1}", "down")) for i in range(racks - 1)]
    switches = tuple(Switch(f"s{i}", "ethernet", ports) for i in range(racks))
    return Layout("racks", 1, tuple(Node(f"n{i}", ()) for i in range(nodes)), switches, tuple(links))


@pytest.mark.parametrize("number", [3, 9, 30])
def test_without_metis_racks_are_not_divided(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_placement, "has_metis", lambda: False)
    placement = place(racks(300, number), THREE)
    assert len(placement.cut) == 2
    assert max(sizes(placement)) <= 1.1 * (300 + number) / 3


def steps(function: Callable[[], object]) -> int:
    """Count the lines that a function executes."""
    count = 0

    def trace(_frame: FrameType, _event: str, _argument: object) -> TraceFunction:
        nonlocal count
        count += 1
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(previous)
    return count


def test_the_steps_of_placement_grow_with_the_nodes() -> None:
    """Racks of 100 nodes, each on its machine: four times the nodes take some four times as many steps, not ten times, as
    they do if each exchange looks at all nodes of two machines."""
    counts = []
    for number in (10, 40):
        layout = racks(100 * number, number)
        machines = {f"m{i}": Capacity(16, 2**36) for i in range(number)}
        assert len(place(layout, machines).cut) == number - 1
        counts.append(steps(lambda layout=layout, machines=machines: place(layout, machines)))  # type: ignore[misc]
    assert counts[1] < 6 * counts[0]


def irregular(nodes: int, seed: int) -> Layout:
    """Return random nodes in a square, each linked to its neighbours."""
    source = random.Random(seed)
    positions = [(source.random(), source.random()) for _ in range(nodes)]
    neighbours = [
        (f"n{i:03}", f"n{j:03}", GIGABIT)
        for i, (x, y) in enumerate(positions)
        for j, (u, v) in enumerate(positions[:i])
        if (x - u) ** 2 + (y - v) ** 2 < 0.01
    ]
    return cluster(neighbours, {f"n{i:03}": 0.0 for i in range(nodes)})


def test_metis_improves_the_cut_of_irregular_clusters_and_worsens_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layouts = [irregular(200, seed) for seed in range(4)] + [resolve(Description.star(30))]
    with_metis = [place(layout, THREE) for layout in layouts]
    monkeypatch.setattr(node_placement, "has_metis", lambda: False)
    without_metis = [place(layout, THREE) for layout in layouts]
    assert all(a.rate <= b.rate for a, b in zip(with_metis, without_metis, strict=True))
    assert sum(placement.rate for placement in with_metis) < 0.95 * sum(placement.rate for placement in without_metis)
    for placement in with_metis:
        assert max(sizes(placement)) <= 1.1 * sum(sizes(placement)) / 3 + 1


def test_metis_keeps_pins_and_memory() -> None:
    layout = irregular(60, 1)
    heavy_layout = Layout("cluster", 1, tuple(Node(n.name, (), memory=2**30) for n in layout.nodes), (), layout.links)
    machines = {name: Capacity(4, 21 * 2**30) for name in "abc"}
    pins = {f"n{i:03}": "abc"[i % 3] for i in range(0, 60, 7)}
    placement = place(heavy_layout, machines, Constraints(pins))
    assert all(placement.machine_of[name] == machine for name, machine in pins.items())
    assert max(sizes(placement)) <= 21


def test_switches_of_a_large_fabric_are_spread_with_the_nodes() -> None:
    placement = place(resolve(Description.fat_tree(8)), THREE)
    for machine in THREE:
        switches = sum(name.startswith("s") for name in placement.on(machine))
        assert 10 <= switches <= 50, switches

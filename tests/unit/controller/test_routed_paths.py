"""Paths of probes through switches with source routes, and the combined expectation of all directions on them."""

from __future__ import annotations

import pytest

from protocols.atm.cell import CELL, circuit, circuit_of
from testbed import Cluster
from testbed.controller.probing.expectations import expect
from testbed.controller.probing.routed_paths import THERE_AND_BACK, RoutedPath, combine, routed_links, routed_paths
from testbed.fabric.myrinet.route import is_intact, port_delta
from testbed.fates.header_fields import skip_route
from testbed.spec.elements import Link, Node
from testbed.spec.layout import Impairment, Layout
from testbed.spec.resolver import resolve

US = 1_000
FRAME = bytes(60)


def paths_by_link(layout: Layout) -> dict[tuple[str, str], RoutedPath]:
    return {(path.link, path.direction): path for path in routed_paths(layout, routed_links(layout))}


def port_deltas(path: RoutedPath) -> list[int]:
    """Return the port delta of each switch on a probe's route."""
    frame = path.to_frame(FRAME)
    assert is_intact(frame)
    return [port_delta(byte) for byte in frame[14 : skip_route(frame, 14)]]


def test_the_link_of_a_nic_is_probed_there_and_back_and_a_cable_on_the_shortest_path_between_nics() -> None:
    layout = resolve(Cluster.ring(4, kind="myrinet"))
    paths = paths_by_link(layout)
    nics = [key for key in paths if key[1] == THERE_AND_BACK]
    cables = [key for key in paths if key[1] != THERE_AND_BACK]
    assert len(nics) == 4
    assert len(cables) == 8
    for name, direction in nics:
        path = paths[name, direction]
        assert path.source == path.sink
        assert [(link.name, way) for link, way in path.crossed] == [(name, "forward"), (name, "backward")]
        assert port_deltas(path) == [0]
    remote = paths["s1:2--s2:2", "forward"]
    assert [link.name for link, _ in remote.crossed] == ["n1:eth0--s1:1", "s1:2--s2:2", "n2:eth0--s2:1"]
    assert (remote.source.owner, remote.sink.owner) == ("n1", "n2")
    assert port_deltas(remote) == [1, -1]


def test_every_link_of_the_now_is_on_a_path() -> None:
    layout = resolve(Cluster.now())
    assert {link for link, _ in paths_by_link(layout)} == {link.name for link in layout.links}


@pytest.mark.parametrize("kind", ["atm", "myrinet"])
def test_a_cable_between_two_nics_is_probed_in_each_direction(kind: str) -> None:
    pair = Cluster(name="pair", nodes=[Node(name="n1"), Node(name="n2")], links=[Link(ends=["n1", "n2"], kind=kind)])
    paths = paths_by_link(resolve(pair))
    assert {key: (path.source.owner, path.sink.owner) for key, path in paths.items()} == {
        ("n1:eth0--n2:eth0", "forward"): ("n1", "n2"),
        ("n1:eth0--n2:eth0", "backward"): ("n2", "n1"),
    }
    assert [[way for _, way in path.crossed] for path in paths.values()] == [["forward"], ["backward"]]


def test_probes_of_an_atm_network_are_cells_of_the_circuit_between_two_nics() -> None:
    layout = resolve(Cluster.ring(4, kind="atm"))
    paths = paths_by_link(layout)
    remote = paths["s1:2--s2:2", "forward"]
    assert [link.name for link, _ in remote.crossed] == ["n1:eth0--s1:1", "s1:2--s2:2", "n2:eth0--s2:1"]
    cell = remote.to_frame(FRAME)[14:]
    assert circuit_of(cell) == circuit(0, 1, 4)
    assert len(cell) == CELL
    nics = [path for (_, direction), path in paths.items() if direction == THERE_AND_BACK]
    assert [circuit_of(path.to_frame(FRAME)[14:]) for path in nics] == [circuit(node, node, 4) for node in range(4)]


def test_switches_without_routes_have_no_paths() -> None:
    assert routed_links(resolve(Cluster.star(3))) == []


def test_delays_add_up_losses_multiply_and_the_slowest_cable_sets_the_rate() -> None:
    impairments = [
        Impairment(delay=50 * US, loss=0.1),
        Impairment(rate=8_000_000),
        Impairment(rate=4_000_000, loss=0.2),
    ]
    combined = combine([(impairment, expect(impairment, {})) for impairment in impairments])
    assert combined.delays == (50 * US + 120 * US,)
    assert combined.loss.share == pytest.approx(1 - 0.9 * 0.8)
    assert combined.rate == 4_000_000
    assert not combined.loss.unpredictable


def test_losses_are_not_judged_if_bit_flips_may_change_a_route() -> None:
    impairments = [Impairment(corrupt=0.1), Impairment(loss=0.2)]
    combined = combine([(impairment, expect(impairment, {})) for impairment in impairments])
    assert "route" in combined.loss.unpredictable
    assert "route" in combined.corrupt.unpredictable

"""Parts of a cluster: who has which nodes, links and tunnels, and which clusters cannot be spread."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from testbed.cluster.plan.kernel_operations import AddHook, Join, MakeCable, MakeTunnel, RemoveDevice
from testbed.errors import UnsupportedError
from testbed.machines.node_placement import placement_of
from testbed.machines.parts import Underlays, pairs, parts
from testbed.spec.layout import Impairment, Layout
from testbed.spec.layout_json import from_json, to_json
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.unit.cluster.kernel_model import Kernel

NOTHING = Impairment()
DELAY, OWN = 1_000_000, 40_000  # ns
WHERE = {"n1": "a", "n2": "b", "s1": "a"}
NETWORK = Underlays({"a": "10.9.0.1", "b": "10.9.0.2"}, {"a": 1550, "b": 1550}, {("a", "b"): OWN})


def pair(forward: Impairment = NOTHING, backward: Impairment = NOTHING) -> Layout:
    layout = resolve(Description.star(2))
    return replace(layout, links=tuple(replace(link, forward=forward, backward=backward) for link in layout.links))


def spread(layout: Layout, network: Underlays = NETWORK) -> dict[str, Layout]:
    return parts(layout, "lab", placement_of(layout, WHERE), network)


def test_each_machine_has_its_nodes_and_every_link_that_ends_there() -> None:
    layout = pair()
    found = spread(layout)
    assert pairs(layout, placement_of(layout, WHERE)) == [("a", "b")]
    assert [node.name for node in found["a"].nodes] == ["n1"]
    assert [node.name for node in found["b"].nodes] == ["n2"]
    assert [switch.name for switch in found["a"].switches] == ["s1"]
    assert found["b"].switches == ()
    assert [link.name for link in found["a"].links] == [link.name for link in layout.links]
    (link,) = found["b"].links
    assert link.name == layout.links[1].name


def test_both_machines_have_the_two_ends_of_one_tunnel() -> None:
    found = spread(pair())
    assert found["a"].part is not None
    assert found["b"].part is not None
    (here,), (there,) = found["a"].part.tunnels, found["b"].part.tunnels
    assert here.vni == there.vni > 0
    assert (here.local, here.remote) == (there.remote, there.local) == ("10.9.0.1", "10.9.0.2")
    assert (here.end.owner, there.end.owner) == ("n2", "s1")
    assert {*found["a"].part.hosts} == {"n2"}


def test_a_direction_is_impaired_where_it_arrives_less_the_underlays_own_delay() -> None:
    found = spread(pair(Impairment(delay=DELAY), Impairment(delay=2 * DELAY, loss=0.1)))
    at_switch, at_node = found["a"].links[1], found["b"].links[0]
    # n2:eth0 -> s1 is forward: it arrives at the switch.
    assert (at_switch.forward, at_switch.backward) == (Impairment(delay=DELAY - OWN), Impairment())
    assert (at_node.forward, at_node.backward) == (Impairment(), Impairment(delay=2 * DELAY - OWN, loss=0.1))
    assert found["a"].links[0] == pair(Impairment(delay=DELAY), Impairment(delay=2 * DELAY, loss=0.1)).links[0]


def test_a_delay_below_the_underlays_is_refused_with_both_figures() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"n2:eth0--s1:2: a delay of 30us is less than the 40us that the network",
    ):
        spread(pair(Impairment(delay=30_000)))


def test_an_underlay_with_too_small_an_mtu_is_refused_with_what_it_takes() -> None:
    network = Underlays(NETWORK.addresses, {"a": 1549, "b": 9000}, {("a", "b"): OWN})
    with pytest.raises(UnsupportedError, match=r"machine a: its underlay has the MTU 1,549, .* need 1,550.* to 1,499"):
        spread(pair(), network)


def test_a_part_survives_being_sent() -> None:
    for part in spread(pair(Impairment(delay=DELAY))).values():
        assert from_json(json.loads(json.dumps(to_json(part)))) == part


def test_ids_depend_on_the_clusters_name() -> None:
    layout = pair()
    placement = placement_of(layout, WHERE)
    one, other = (parts(layout, name, placement, NETWORK)["a"].part for name in ("lab", "lab2"))
    assert one is not None
    assert other is not None
    assert one.tunnels[0].vni != other.tunnels[0].vni


def test_a_tunnel_is_plugged_into_a_switch_or_joined_to_a_node_and_goes_with_its_link() -> None:
    found = spread(pair())
    at_switch, at_node = Kernel(), Kernel()
    operations = at_switch.converge(found["a"])
    assert [type(one) for one in operations if isinstance(one, MakeTunnel | MakeCable)].count(MakeTunnel) == 1
    assert any(isinstance(one, AddHook) for one in operations)
    assert at_switch.converge(found["a"]) == []
    operations = at_node.converge(found["b"])
    assert any(isinstance(one, MakeTunnel) for one in operations)
    assert any(isinstance(one, Join) for one in operations)
    assert at_node.converge(found["b"]) == []
    alone = replace(found["a"], links=found["a"].links[:1], part=None)
    assert any(isinstance(one, RemoveDevice) and one.device.startswith("tun+") for one in at_switch.converge(alone))


def test_a_tunnel_to_another_machine_is_made_anew() -> None:
    found = spread(pair())["b"]
    assert found.part is not None
    kernel = Kernel()
    kernel.converge(found)
    (tunnel,) = found.part.tunnels
    moved = replace(found, part=replace(found.part, tunnels=(replace(tunnel, remote="10.9.0.3"),)))
    kinds = [type(one) for one in kernel.converge(moved)]
    assert RemoveDevice in kinds
    assert MakeTunnel in kinds

"""Parts of a spread cluster: nodes, links and tunnels of each machine, and clusters that cannot be spread."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.cluster.faults.fault_injection import compose_cut, compose_impairment, compose_partition
from testbed.cluster.plan.kernel_operations import AddHook, Join, MakeCable, MakeTunnel, RemoveDevice
from testbed.cluster.plan.link_decisions import decide
from testbed.cluster.plan.veth_wiring import Wiring
from testbed.errors import UnsupportedError
from testbed.machines.node_placement import placement_of
from testbed.machines.parts import Underlays, complete_layout, linked_machines, parts
from testbed.machines.spread_faults import merge_injections, share
from testbed.spec.layout import Impairment, Layout
from testbed.spec.layout_json import from_json, to_json
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.unit.cluster.kernel_model import Kernel

NOTHING = Impairment()
DELAY, UNDERLAY_DELAY = 1_000_000, 40_000  # ns
MACHINE_OF = {"n1": "a", "n2": "b", "s1": "a"}
SMALL_MTU = 1400
DIRECT = f"""
name = "direct"
node = [{{ name = "n1" }}, {{ name = "n2", nic = [{{ mtu = {SMALL_MTU} }}] }}]
link = [{{ ends = ["n1", "n2"], datapath = "direct" }}]
"""
NETWORK = Underlays({"a": "10.9.0.1", "b": "10.9.0.2"}, {"a": 1550, "b": 1550}, {("a", "b"): UNDERLAY_DELAY})


def pair(forward: Impairment = NOTHING, backward: Impairment = NOTHING) -> Layout:
    layout = resolve(Description.star(2))
    return replace(layout, links=tuple(replace(link, forward=forward, backward=backward) for link in layout.links))


def spread(layout: Layout, network: Underlays = NETWORK) -> dict[str, Layout]:
    return parts(layout, "lab", placement_of(layout, MACHINE_OF), network)


def test_each_machine_has_its_nodes_and_every_link_that_ends_there() -> None:
    layout = pair()
    layouts = spread(layout)
    assert linked_machines(layout, placement_of(layout, MACHINE_OF)) == [("a", "b")]
    assert [node.name for node in layouts["a"].nodes] == ["n1"]
    assert [node.name for node in layouts["b"].nodes] == ["n2"]
    assert [switch.name for switch in layouts["a"].switches] == ["s1"]
    assert layouts["b"].switches == ()
    assert [link.name for link in layouts["a"].links] == [link.name for link in layout.links]
    (link,) = layouts["b"].links
    assert link.name == layout.links[1].name


def test_a_tunnel_has_an_end_on_both_machines() -> None:
    layouts = spread(pair())
    assert layouts["a"].part is not None
    assert layouts["b"].part is not None
    (local,), (remote,) = layouts["a"].part.tunnels, layouts["b"].part.tunnels
    assert local.vni == remote.vni > 0
    assert (local.local, local.remote) == (remote.remote, remote.local) == ("10.9.0.1", "10.9.0.2")
    assert (local.end.owner, remote.end.owner) == ("n2", "s1")
    assert (local.machine, remote.machine) == ("b", "a")
    assert [node.name for node in layouts["a"].part.nodes] == ["n1", "n2"]
    assert [node.name for node in layouts["a"].nodes_elsewhere()] == ["n2"]


def test_a_machine_has_the_files_of_its_own_nodes_only() -> None:
    layout = pair()
    files = {"/etc/motd": "hello\n"}
    parts = spread(replace(layout, nodes=tuple(replace(node, files=files) for node in layout.nodes)))
    for machine, part in parts.items():
        assert {node.name: node.files for node in part.with_all_nodes.nodes} == {
            node.name: files if MACHINE_OF[node.name] == machine else {} for node in layout.nodes
        }


def test_the_parts_together_are_the_cluster() -> None:
    layout = pair(Impairment(delay=DELAY, loss=0.1), Impairment(delay=2 * DELAY, rate=10**9))
    complete = complete_layout(spread(layout).values())
    assert replace(complete, links=()) == replace(layout, links=())
    assert [link.datapath for link in complete.links] == ["auto", "relay"]
    assert tuple(replace(link, datapath="auto") for link in complete.links) == layout.links


def test_each_machine_has_the_directions_of_an_injection_that_arrive_there() -> None:
    layouts = spread(pair())
    injection = compose_impairment(pair(), (), "all", {"loss": 0.1}, rules=["drop udp"])
    local_link, cut_link = "n1:eth0--s1:1", "n2:eth0--s1:2"
    at_switch, at_node = share(injection, layouts["a"]), share(injection, layouts["b"])
    assert at_switch is not None
    assert at_node is not None
    assert at_switch.places == ((local_link, "forward"), (local_link, "backward"), (cut_link, "forward"))
    assert at_node.places == ((cut_link, "backward"),)
    assert at_node.rules == (((cut_link, "backward"), "drop udp"),)
    assert merge_injections([[at_switch], [at_node]]) == (
        replace(injection, places=(*at_switch.places, *at_node.places), rules=(*at_switch.rules, *at_node.rules)),
    )
    assert share(compose_impairment(pair(), (), "n2", {"loss": 0.1}, direction="in"), layouts["a"]) is None


def test_a_cut_concerns_both_machines_and_a_partition_each_deaf_nodes() -> None:
    layouts = spread(pair())
    cut = compose_cut(pair(), "n2")
    assert [share(cut, part) for part in layouts.values()] == [cut, cut]
    divided = compose_partition(pair(), [["n1"], ["n2"]])
    rules = {machine: placed.rules for machine, part in layouts.items() if (placed := share(divided, part)) is not None}
    assert [direction for direction, _ in rules["a"]] == [("n1:eth0--s1:1", "backward")]
    assert [direction for direction, _ in rules["b"]] == [("n2:eth0--s1:2", "backward")]


def test_a_direction_is_impaired_where_it_arrives() -> None:
    forward, backward = Impairment(delay=DELAY), Impairment(delay=2 * DELAY, loss=0.1)
    layouts = spread(pair(forward, backward))
    at_switch, at_node = layouts["a"].links[1], layouts["b"].links[0]
    # n2:eth0 -> s1 is forward: it arrives at the switch.
    assert (at_switch.forward, at_switch.backward) == (forward, NOTHING)
    assert (at_node.forward, at_node.backward) == (NOTHING, backward)
    assert layouts["a"].links[0] == pair(forward, backward).links[0]


def test_the_datapath_adds_the_impairments_that_the_underlay_lacks() -> None:
    part = spread(pair(Impairment(delay=DELAY)))["a"]
    link = part.links[1].name
    relayed_links = {carried.name: carried for carried in decide(part, (), "relay", Path()).orders.links}
    assert relayed_links[link].forward.impairment.delay == DELAY - UNDERLAY_DELAY
    injection = replace(compose_impairment(part, (), link, {"delay": UNDERLAY_DELAY}, direction="forward"), number=1)
    assert link not in {carried.name for carried in decide(part, (injection,), "relay", Path()).orders.links}
    below = replace(injection, keys={"delay": UNDERLAY_DELAY - 1})
    with pytest.raises(
        UnsupportedError, match=r"a delay of 39.999us is less than the 40us that the network to machine b"
    ):
        decide(part, (below,), "relay", Path())


def test_a_delay_below_the_underlays_is_rejected_with_both_values() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"n2:eth0--s1:2: a delay of 30us is less than the 40us that the network",
    ):
        spread(pair(Impairment(delay=30_000)))


def test_an_underlay_with_too_small_an_mtu_is_rejected_with_the_required_one() -> None:
    network = Underlays(NETWORK.addresses, {"a": 1549, "b": 9000}, {("a", "b"): UNDERLAY_DELAY})
    with pytest.raises(UnsupportedError, match=r"machine a: its underlay has the MTU 1,549, .* need 1,550.* to 1,499"):
        spread(pair(), network)


def test_a_part_survives_serialization() -> None:
    for part in spread(pair(Impairment(delay=DELAY))).values():
        assert from_json(json.loads(json.dumps(to_json(part)))) == part


def test_ids_depend_on_the_clusters_name() -> None:
    layout = pair()
    placement = placement_of(layout, MACHINE_OF)
    first, second = (parts(layout, name, placement, NETWORK)["a"].part for name in ("lab", "lab2"))
    assert first is not None
    assert second is not None
    assert first.tunnels[0].vni != second.tunnels[0].vni


def test_a_tunnel_is_attached_to_a_switch_or_a_node_and_removed_with_its_link() -> None:
    layouts = spread(pair())
    at_switch, at_node = Kernel(), Kernel()
    operations = at_switch.converge(layouts["a"])
    assert [type(operation) for operation in operations if isinstance(operation, MakeTunnel | MakeCable)].count(
        MakeTunnel
    ) == 1
    assert any(isinstance(operation, AddHook) for operation in operations)
    assert at_switch.converge(layouts["a"]) == []
    operations = at_node.converge(layouts["b"])
    assert any(isinstance(operation, MakeTunnel) for operation in operations)
    assert any(isinstance(operation, Join) for operation in operations)
    assert at_node.converge(layouts["b"]) == []
    one_link = replace(layouts["a"], links=layouts["a"].links[:1], part=None)
    assert any(
        isinstance(operation, RemoveDevice) and operation.device.startswith("tun+")
        for operation in at_switch.converge(one_link)
    )


def test_a_tunnel_to_another_machine_is_recreated() -> None:
    layouts = spread(pair())["b"]
    assert layouts.part is not None
    kernel = Kernel()
    kernel.converge(layouts)
    (tunnel,) = layouts.part.tunnels
    moved_tunnel = replace(layouts, part=replace(layouts.part, tunnels=(replace(tunnel, remote="10.9.0.3"),)))
    operation_types = [type(operation) for operation in kernel.converge(moved_tunnel)]
    assert RemoveDevice in operation_types
    assert MakeTunnel in operation_types


def test_the_nics_of_a_direct_link_are_the_ends_of_its_tunnel() -> None:
    layout = resolve(Description.from_toml(DIRECT))
    layouts = spread(layout)
    assert complete_layout(layouts.values()) == layout
    for machine, node in zip("ab", layout.nodes, strict=True):
        part, kernel = layouts[machine], Kernel()
        (made,) = [operation for operation in kernel.converge(part) if isinstance(operation, MakeTunnel)]
        assert (made.key, made.device, made.mac) == (node.name, node.nics[0].name, node.nics[0].mac)
        assert made.mtu == SMALL_MTU  # the smaller one of the two nodes'
        assert not Wiring.from_datapaths(part, {}).wire_devices
        assert kernel.converge(part) == []
        indirect = replace(part, links=tuple(replace(link, datapath="relay") for link in part.links))
        assert any(isinstance(operation, Join) for operation in kernel.converge(indirect))
        assert MakeTunnel in {type(operation) for operation in kernel.converge(part)}
        assert kernel.converge(part) == []


def test_a_direct_link_to_another_machine_is_neither_impaired_nor_cut() -> None:
    part = spread(resolve(Description.from_toml(DIRECT)))["a"]
    link = part.links[0].name
    for injection in (compose_impairment(part, (), link, {"loss": 0.1}), compose_cut(part, link)):
        with pytest.raises(UnsupportedError, match="nothing between them"):
            decide(part, (injection,), "relay", Path())

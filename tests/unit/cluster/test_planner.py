"""Plans as a pure function of existing and desired state: exactly the necessary operations, in order.

Existing states are built by executing plans in a model of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import ExistingState
from testbed.cluster.plan.interface_indexes import FIRST_DIRECT_INDEX, FIRST_NODE_INDEX, FIRST_WIRE_INDEX
from testbed.cluster.plan.kernel_operations import (
    AddForwarding,
    MakeCable,
    RemoveNamespace,
    SetLimits,
    SetPort,
    SetUp,
)
from testbed.cluster.plan.planner import plan
from testbed.spec.model import Defaults, Description, Link, Nic, Node, Switch
from testbed.spec.resolver import resolve
from tests.unit.cluster.kernel_model import Kernel, converged, interface_named, lines, operations_of_change
from tests.unit.spec.cluster_strategies import descriptions, edits


def description_with(links: Sequence[Link], nodes: int = 3, switches: int = 2, **options: object) -> Description:
    return Description(
        name="test",
        nodes=[Node(name=f"n{number}") for number in range(1, nodes + 1)],
        switches=[Switch(name=f"s{number}") for number in range(1, switches + 1)],
        links=links,
        **options,  # type: ignore[arg-type]
    )


def linked_cluster(*ends: str, nodes: int = 3, switches: int = 2, datapath: str = "auto") -> Description:
    """``linked_cluster("n1 s1", "n2 s1")``"""
    return description_with([Link(ends=pair.split(), datapath=datapath) for pair in ends], nodes, switches)


def test_the_operations_of_a_new_star_in_order() -> None:
    assert lines(plan(resolve(Description.star(2)), ExistingState())) == [
        "make the wire namespace",
        "make node n1",
        "make node n2",
        "make switch s1",
        "make link n1:eth0--s1:1",
        "make link n2:eth0--s1:2",
        "add address 10.0.0.1/16 to n1:eth0",
        "set eth0 in n1 up",
        "add address 10.0.0.2/16 to n2:eth0",
        "set eth0 in n2 up",
    ]


SHAPES = [
    Description.star(5),
    Description.line(4),
    Description.ring(4),
    Description.full_mesh(4),
    Description.fat_tree(4),
    Description.dumbbell(2, 2),
    Description.back_to_back(),
    Description.now(kind="ethernet"),
    linked_cluster("n1 n2", "n2 n3", datapath="direct"),
    linked_cluster("n1 s1", "n2 s1", "n2 s2", "n3 s2"),
]


@pytest.mark.parametrize("description", SHAPES, ids=lambda description: str(description.name))
def test_a_second_up_plans_no_operation(description: Description) -> None:
    assert converged(description).converge(resolve(description)) == []


def test_a_fault_keeps_settings_of_routing_daemons_and_up_restores_the_description() -> None:
    layout = resolve(linked_cluster("n1 s1", "n2 s1", "n2 s2", "n3 s2"))
    kernel = Kernel()
    kernel.converge(layout)
    [index] = [index for index, nic in kernel.interfaces["n1"].items() if nic.name == "eth0"]
    kernel.addresses["n1"][index].add("10.0.0.100/16")
    kernel.routes["n1"].clear()
    kernel.routing["n2"].clear()
    assert plan(layout, kernel.existing(), keeps_settings=True) == []
    assert lines(plan(layout, kernel.existing())) == [
        "let n2 route IPv4 between its NICs",
        "remove address 10.0.0.100/16 from n1:eth0",
        "add address 10.0.0.1/16 to n1:eth0",  # the kernel may remove it with the first
        "add route 10.1.0.0/16 via 10.0.0.2 to n1",
    ]
    kernel.interfaces["n1"].clear()  # a removed NIC needs all of its settings
    repaired = lines(plan(layout, kernel.existing(), keeps_settings=True))
    for recreated in ("add address 10.0.0.1/16 to n1:eth0", "add route 10.1.0.0/16 via 10.0.0.2 to n1"):
        assert recreated in repaired


def test_a_changed_mtu_is_set_at_both_ends_of_its_cable() -> None:
    nodes = [Node(name="n1", nics=[Nic(name="eth0", mtu=9000)]), Node(name="n2"), Node(name="n3")]
    after = Description(
        name="test", nodes=nodes, switches=[Switch(name="s1")], links=[Link(ends=[f"n{n}", "s1"]) for n in (1, 2, 3)]
    )
    before = linked_cluster("n1 s1", "n2 s1", "n3 s1", switches=1)
    assert operations_of_change(before, after) == ["set n1.eth0 to MTU 9000", "set eth0 in n1 to MTU 9000"]


def test_a_changed_mac_is_set_on_the_nic_only() -> None:
    before = linked_cluster("n1 s1", "n2 s1", nodes=2, switches=1)
    nodes = [Node(name="n1", nics=[Nic(name="eth0", mac="02:00:00:00:00:aa")]), Node(name="n2")]
    after = Description(name="test", nodes=nodes, switches=before.switches, links=before.links)
    assert operations_of_change(before, after) == ["set eth0 in n1 to MAC 02:00:00:00:00:aa"]


def test_adding_a_node_affects_no_other() -> None:
    assert operations_of_change(Description.star(3, name="star"), Description.star(4, name="star")) == [
        "make node n4",
        "make link n4:eth0--s1:4",
        "add address 10.0.0.4/16 to n4:eth0",
        "set eth0 in n4 up",
    ]


def test_removing_a_node_affects_no_other() -> None:
    assert operations_of_change(Description.star(4, name="star"), Description.star(3, name="star")) == [
        "remove n4.eth0",
        "remove node n4",
    ]


def test_adding_a_node_to_a_switch_does_not_disturb_its_trunk_whose_port_moves() -> None:
    before, after = Description.dumbbell(2, 2, name="x"), Description.dumbbell(3, 2, name="x")
    assert resolve(before).links[-1].name != resolve(after).links[-1].name
    assert not any(
        "s1.s2" in line or line.startswith(("make link s", "remove s")) for line in operations_of_change(before, after)
    )


def test_removing_one_of_two_parallel_trunks_removes_one_trunk() -> None:
    before = linked_cluster("n1 s1", "n2 s2", "s1 s2", "s1 s2", nodes=2)
    after = linked_cluster("n1 s1", "n2 s2", "s1 s2", nodes=2)
    assert [line for line in operations_of_change(before, after) if "remove" in line] == [
        "remove s1.s2.2",
        "remove s2.s1.2",
    ]


def test_removing_a_link_removes_its_nic() -> None:
    before = linked_cluster("n1 s1", "n2 s1", "n3 s1", "n3 s2")
    after = linked_cluster("n1 s1", "n2 s1", "n3 s1")
    assert operations_of_change(before, after)[:1] == ["remove n3.eth1"]


def test_a_link_to_another_switch_is_plugged_there_with_the_same_nic() -> None:
    before = linked_cluster("n1 s1", "n2 s1", "n3 s2", "s1 s2")
    after = linked_cluster("n1 s2", "n2 s1", "n3 s2", "s1 s2")
    assert operations_of_change(before, after) == [
        f"set n1.eth0 to switch index {FIRST_WIRE_INDEX + 1}",
        "flush the addresses learned by s1",
        "flush the addresses learned by s2",
    ]


def test_two_cables_into_a_switch_become_one_cable_between_nodes() -> None:
    before = linked_cluster("n1 s1", "n2 s1", nodes=2, switches=1)
    after = linked_cluster("n1 n2", nodes=2, switches=1)
    assert operations_of_change(before, after) == [
        "set n1.eth0 to switch index 0",
        "set n2.eth0 to switch index 0",
        "join n1:eth0--n2:eth0",
        "flush the addresses learned by s1",
    ]


def test_a_cable_between_nodes_is_parted_before_its_ends_are_plugged_in() -> None:
    before = linked_cluster("n1 n2", nodes=2, switches=1)
    after = linked_cluster("n1 s1", "n2 s1", nodes=2, switches=1)
    kernel = converged(before)
    operations = lines(kernel.converge(resolve(after)))
    switch = interface_named(kernel, "", "s1").index
    assert operations == [
        "part n1.eth0",
        "part n2.eth0",
        f"set n1.eth0 to switch index {switch}",
        "add a hook to n1.eth0",
        f"set n2.eth0 to switch index {switch}",
        "add a hook to n2.eth0",
        "flush the addresses learned by s1",
    ]


def test_cables_between_nodes_change_partners_without_new_nics() -> None:
    before = linked_cluster("n1 n2", "n3 n4", nodes=4, switches=0)
    after = linked_cluster("n1 n3", "n2 n4", nodes=4, switches=0)
    operations = operations_of_change(before, after)
    assert {line for line in operations if "address" not in line} == {
        "part n1.eth0", "part n2.eth0", "part n3.eth0", "part n4.eth0",
        "join n1:eth0--n3:eth0", "join n2:eth0--n4:eth0",
    }  # fmt: skip


def test_direct_links_that_change_partners_are_recreated() -> None:
    """Both pairs differ only in their indexes, so no index occurs in two of them."""
    before = linked_cluster("n1 n2", "n3 n4", nodes=4, switches=0, datapath="direct")
    after = linked_cluster("n1 n3", "n2 n4", nodes=4, switches=0, datapath="direct")
    assert [line for line in operations_of_change(before, after) if line.startswith("make")] == [
        "make link n1:eth0--n3:eth0",
        "make link n2:eth0--n4:eth0",
    ]


def test_a_link_becomes_direct_and_back() -> None:
    joined, direct = (
        linked_cluster("n1 n2", "n2 n3", switches=0),
        linked_cluster("n1 n2", "n2 n3", switches=0, datapath="direct"),
    )
    assert "make link n1:eth0--n2:eth0" in operations_of_change(joined, direct)
    assert "join n1:eth0--n2:eth0" in operations_of_change(direct, joined)
    kernel = converged(direct)
    indexes = [i for key, interface in kernel.interfaces.items() for i in interface if key and i != 1]
    assert len(indexes) == len(set(indexes)) == 4
    assert min(indexes) >= FIRST_DIRECT_INDEX


def test_the_lowest_interface_indexes_are_left_to_the_kernel() -> None:
    """A new namespace has interfaces of the kernel if tunnel modules are loaded."""
    for operation in plan(resolve(Description.star(3)), ExistingState()):
        if isinstance(operation, MakeCable):
            assert operation.peer_index >= FIRST_NODE_INDEX > 20


def test_the_kernels_own_interfaces_are_not_changed() -> None:
    kernel = converged(Description.star(2))
    for key in kernel.interfaces:
        kernel.make(key, 2, "tunl0", "ipip", "00:00:00:00", 1480)
        kernel.make(key, 3, "sit0", "sit", "00:00:00:00", 1480)
    assert kernel.converge(resolve(Description.star(2))) == []


def test_other_objects_in_the_wire_namespace_are_removed() -> None:
    kernel = converged(Description.star(2))
    kernel.make(namespace_names.WIRE, 2, "stray", "veth", "02:00:00:00:00:01", 1500)
    assert lines(kernel.converge(resolve(Description.star(2)))) == ["remove stray"]


def test_interfaces_added_to_a_node_by_a_user_are_kept() -> None:
    kernel = converged(Description.star(2))
    kernel.make("n1", 2, "dummy0", "dummy", "02:00:00:00:00:01", 1500)
    kernel.addresses["n1"][2] = {"192.168.0.1/24"}
    assert kernel.converge(resolve(Description.star(2))) == []


def test_inherited_forwarding_of_a_node_with_one_nic_is_ignored() -> None:
    kernel = converged(Description.star(2))
    kernel.routing["n1"] = {4, 6}
    assert kernel.converge(resolve(Description.star(2))) == []


def test_forwarding_is_enabled_on_a_router_before_it_has_its_nics() -> None:
    operations = lines(plan(resolve(linked_cluster("n1 s1", "n2 s1", "n2 s2", "n3 s2")), ExistingState()))
    assert operations.index("let n2 route IPv4 between its NICs") < operations.index("make link n2:eth0--s1:2")
    assert operations[-1] == "add route 10.0.0.0/16 via 10.1.0.2 to n3"


def test_an_ipv6_router_has_link_local_addresses_for_neighbour_discovery() -> None:
    links = [Link(ends=ends.split()) for ends in ("n1 s1", "n2 s1", "n2 s2", "n3 s2")]
    kernel = converged(description_with(links))
    with_ipv6 = resolve(description_with(links, network6="fd00::/48"))
    operations = lines(kernel.converge(with_ipv6))
    assert "let n2 route IPv6 between its NICs" in operations
    link_local = [line for line in operations if "add address fe80::" in line]
    assert len(link_local) == 2
    assert all(":" in line and " to n2:eth" in line for line in link_local)
    assert kernel.converge(with_ipv6) == []
    assert (
        len([line for line in lines(kernel.converge(resolve(description_with(links)))) if "remove address" in line])
        == 6
    )


def test_routes_follow_the_router() -> None:
    before = linked_cluster("n1 s1", "n2 s1", "n2 s2", "n3 s2", nodes=4)
    after = linked_cluster("n1 s1", "n4 s1", "n4 s2", "n3 s2", nodes=4)
    operations = operations_of_change(before, after)
    assert "remove route 10.1.0.0/16 via 10.0.0.2 from n1" in operations
    assert "add route 10.1.0.0/16 via 10.0.0.4 to n1" in operations
    assert not any("stop n2" in line for line in operations)  # n2 has no NICs left


# Cyclic segments


def test_in_a_ring_no_port_is_set_up_before_its_settings() -> None:
    operations = plan(resolve(Description.ring(3)), ExistingState())
    set_up_at = {operation.device: index for index, operation in enumerate(operations) if isinstance(operation, SetUp)}
    for index, operation in enumerate(operations):
        if isinstance(operation, MakeCable):
            assert not operation.up
        if isinstance(operation, SetPort | AddForwarding):
            assert index < set_up_at[operation.device]
    ports = [operation for operation in operations if isinstance(operation, SetPort)]
    assert len(ports) == 9
    assert not any(port.learning for port in ports)
    assert sum(not port.flooding for port in ports) == 2  # the one trunk that is not in the tree, at both ends


def test_a_trunk_that_closes_a_ring_is_set_up_after_all_switches_stop_learning() -> None:
    before, after = Description.line(4, name="x"), Description.ring(4, name="x")
    kernel = converged(before)
    operations = kernel.converge(resolve(after))
    assert [str(operation) for operation in operations if isinstance(operation, MakeCable)] == ["make link s4:3--s1:3"]
    first_up = next(index for index, operation in enumerate(operations) if isinstance(operation, SetUp))
    assert not any(isinstance(operation, SetPort | AddForwarding) for operation in operations[first_up:])
    assert kernel.converge(resolve(after)) == []


def test_a_ring_that_is_opened_learns_again() -> None:
    before, after = Description.ring(4, name="x"), Description.line(4, name="x")
    operations = operations_of_change(before, after)
    assert sorted(operations[:2]) == ["remove s1.s4", "remove s4.s1"]
    assert "set port n1.eth0 learning, flooding" in operations
    assert sum(line.startswith("flush the addresses learned by ") for line in operations) == 4
    assert not any("make" in line for line in operations)


def test_flooding_moves_to_another_tree_without_a_temporary_cycle() -> None:
    """Ports stop flooding before others begin: at no moment do all trunks of a ring flood."""
    trunks = ["s1 s2", "s2 s3", "s3 s4", "s4 s1"]
    nodes = [f"n{number} s{number}" for number in range(1, 5)]
    before = linked_cluster(*nodes, *trunks, nodes=4, switches=4)
    after = linked_cluster(*nodes, *trunks[2:], *trunks[:2], nodes=4, switches=4)
    kernel = converged(before)
    operations = plan(resolve(after), kernel.existing())
    assert [operation for operation in operations if isinstance(operation, SetPort) and operation.flooding]
    for operation in operations:
        kernel.execute(operation)
        wire = kernel.interfaces[namespace_names.WIRE]
        ends = [
            interface
            for interface in wire.values()
            if interface.kind == "veth" and interface.peer in wire and interface.master
        ]
        assert len(ends) == 8
        assert not all(end.flooding and end.up for end in ends)


def test_adding_a_node_to_a_ring_changes_tables_only_by_its_own_entry() -> None:
    nodes = [f"n{number} s{number}" for number in (1, 2, 3)]
    trunks = ["s1 s2", "s2 s3", "s3 s1"]
    before = linked_cluster(*nodes, *trunks, nodes=3, switches=3)
    after = linked_cluster(*nodes, *trunks, "n4 s1", nodes=4, switches=3)
    operations = operations_of_change(before, after)
    mac = resolve(after).nodes[3].nics[0].mac
    assert operations[:2] == ["make node n4", "make link n4:eth0--s1:4"]
    assert len([line for line in operations if line.startswith(f"forward {mac}")]) == 3
    assert len(operations) == 2 + 1 + 3 + 1 + 2  # and settings of its port, up, address, up


# Manual changes and interrupted plans


def test_a_namespace_removed_by_hand_is_recreated() -> None:
    kernel = converged(Description.star(3))
    kernel.execute(RemoveNamespace("n2"))
    assert lines(kernel.converge(resolve(Description.star(3)))) == [
        "make node n2",
        "make link n2:eth0--s1:2",
        "add address 10.0.0.2/16 to n2:eth0",
        "set eth0 in n2 up",
    ]


def test_a_namespace_is_recreated_while_the_kernel_still_frees_its_cables() -> None:
    """The kernel frees a namespace later than its name."""
    kernel = converged(Description.star(3))
    for table in (kernel.interfaces, kernel.addresses, kernel.routes, kernel.routing):
        del table["n2"]
    operations = lines(kernel.converge(resolve(Description.star(3))))
    assert operations[0] == "remove n2.eth0"
    assert kernel.converge(resolve(Description.star(3))) == []


MANUAL_CHANGES: list[tuple[str, Callable[[Kernel], None], list[str]]] = [
    (
        "a NIC set down",
        lambda k: k.set_attributes("n1", interface_named(k, "n1", "eth0").index, up=False),
        ["set eth0 in n1 up"],
    ),
    (
        "a wire end set down",
        lambda k: k.set_attributes("", interface_named(k, "", "n1.eth0").index, up=False),
        ["set n1.eth0 in the wire namespace up"],
    ),
    (
        "a switch set down",
        lambda k: k.set_attributes("", interface_named(k, "", "s1").index, up=False),
        ["set s1 in the wire namespace up"],
    ),
    (
        "a port taken out of its switch",
        lambda k: k.set_attributes("", interface_named(k, "", "n1.eth0").index, master=0),
        [f"set n1.eth0 to switch index {FIRST_WIRE_INDEX}", "flush the addresses learned by s1"],
    ),
    (
        "an address removed",
        lambda k: k.addresses["n1"].clear(),
        ["add address 10.0.0.1/16 to n1:eth0"],
    ),
    (
        "a port that does not learn",
        lambda k: k.set_attributes("", interface_named(k, "", "n1.eth0").index, learning=False),
        ["set port n1.eth0 learning, flooding"],
    ),
]


@pytest.mark.parametrize(
    ("change", "expected"), [case[1:] for case in MANUAL_CHANGES], ids=[case[0] for case in MANUAL_CHANGES]
)
def test_manual_changes_are_repaired(change: Callable[[Kernel], None], expected: list[str]) -> None:
    kernel = converged(Description.star(2))
    change(kernel)
    assert lines(kernel.converge(resolve(Description.star(2)))) == expected


def test_a_switch_removed_by_hand_gets_its_ports_back() -> None:
    kernel = converged(Description.star(2))
    bridge = interface_named(kernel, "", "s1").index
    kernel.remove("", bridge)
    for name in ("n1.eth0", "n2.eth0"):
        kernel.set_attributes("", interface_named(kernel, "", name).index, master=0)
    operations = lines(kernel.converge(resolve(Description.star(2))))
    bridge = interface_named(kernel, "", "s1").index
    assert operations == [
        "make switch s1",
        f"set n1.eth0 to switch index {bridge}",
        f"set n2.eth0 to switch index {bridge}",
    ]


def test_an_incomplete_join_is_parted_first() -> None:
    kernel = converged(Description.back_to_back())
    del kernel.redirections[interface_named(kernel, "", "n2.eth0").index]
    assert lines(kernel.converge(resolve(Description.back_to_back()))) == ["part n1.eth0", "join n1:eth0--n2:eth0"]


def test_when_an_ipv4_address_is_removed_the_others_of_its_nic_are_added_again() -> None:
    """The kernel removes the secondary addresses of the same network along with it."""

    def star(*addresses: str) -> Description:
        nodes = [Node(name="n1", nics=[Nic(name="eth0", addresses=addresses)]), Node(name="n2")]
        links = [Link(ends=[name, "s1"]) for name in ("n1", "n2")]
        return Description(name="x", nodes=nodes, switches=[Switch(name="s1")], links=links)

    before, after = star("10.0.0.1/16", "10.0.0.9/16"), star("10.0.0.9/16")
    assert operations_of_change(before, after) == [
        "remove address 10.0.0.1/16 from n1:eth0",
        "add address 10.0.0.9/16 to n1:eth0",
    ]


@given(st.data())
def test_any_cluster_converges_to_any_other_and_a_second_plan_is_empty(data: st.DataObject) -> None:
    """Random clusters and edits, some of whose links between nodes are direct."""
    kernel = Kernel()
    description = data.draw(descriptions())
    for _ in range(3):
        expected = resolve(description)
        nodes = {node.name for node in expected.nodes}
        links = tuple(
            replace(link, datapath="direct")
            if {link.a.owner, link.b.owner} <= nodes and data.draw(st.booleans())
            else link
            for link in expected.links
        )
        expected = replace(expected, links=links)
        kernel.converge(expected)
        assert kernel.converge(expected) == []
        for switch in expected.switches:
            bridge = interface_named(kernel, namespace_names.WIRE, namespace_names.switch(switch.name)).index
            assert {mac for index, mac in kernel.forwarding if index == bridge} == switch.forwarding.keys()
        for link in links:
            if link.datapath == "direct":
                first, second = (interface_named(kernel, end.owner, end.port) for end in (link.a, link.b))
                assert (first.peer, second.peer) == (second.index, first.index)
        description = data.draw(st.one_of(edits(description), descriptions()))


# Limits


def test_limits_are_set_changed_and_removed() -> None:
    def limited(**limits: object) -> Description:
        return Description(name="x", nodes=[Node(name="n1", **limits)])  # type: ignore[arg-type]

    kernel = converged(limited(cpu_share=0.5, memory="64MiB"))
    assert kernel.limits == {"n1": (0.5, 64 << 20)}
    assert kernel.converge(resolve(limited(cpu_share=0.5, memory="64MiB"))) == []
    assert kernel.converge(resolve(limited(memory="64MiB"))) == [SetLimits("n1", 0.0, 64 << 20)]
    assert kernel.converge(resolve(limited())) == [SetLimits("n1", 0.0, 0)]


def test_a_changed_default_mtu_changes_every_cable_in_place() -> None:
    links = [Link(ends=["n1", "s1"]), Link(ends=["n2", "s2"]), Link(ends=["s1", "s2"])]
    operations = operations_of_change(
        description_with(links, 2), description_with(links, 2, defaults=Defaults(mtu=9000))
    )
    assert len(operations) == 6
    assert all(line.startswith("set ") and line.endswith("MTU 9000") for line in operations)

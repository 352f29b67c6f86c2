"""Names of kernel objects: within the kernel's length, unique, and readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.veth_wiring import Wiring, free_ends, stage_ends, wire_ends
from testbed.spec.layout import Layout
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve

OWNERS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")
PORTS = st.one_of(st.sampled_from(["eth0", "eth1", "eth10", "ib0", "a.b"]), st.from_regex(r"\A[!-$&-.0-9;-~]{1,15}\Z"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("s1", "s1"), ("a-rack-switch_1", "a-rack-switch_1"), ("lo", "lo~"), ("all", "all~"), ("default", "defa~")],
)
def test_a_switch_keeps_its_name_where_the_kernel_allows_it(name: str, expected: str) -> None:
    assert namespace_names.switch(name).startswith(expected)
    assert len(namespace_names.switch(name)) <= 15


def test_a_long_name_is_shortened_to_its_beginning_and_a_hash() -> None:
    assert namespace_names.far_end("rack1-host2", "eth0") == namespace_names.far_end("rack1-host2", "eth0")
    assert namespace_names.far_end("rack1-host2", "eth0").startswith("rack~")
    assert namespace_names.far_end("n100", "eth0") == "n100.eth0"


@given(st.sets(st.tuples(OWNERS, PORTS), max_size=20), st.sets(OWNERS, max_size=10))
def test_all_names_in_a_wire_namespace_are_short_enough_and_unique(
    ends: set[tuple[str, str]], switches: set[str]
) -> None:
    names = [namespace_names.far_end(*end) for end in ends] + [namespace_names.switch(name) for name in switches]
    assert all(1 <= len(name) <= 15 for name in names)
    assert len(set(names)) == len(names)


@given(OWNERS, OWNERS)
def test_a_namespace_belongs_to_its_cluster_only(cluster: str, node: str) -> None:
    assert namespace_names.cluster_of(namespace_names.namespace(cluster, node)) == cluster
    assert namespace_names.cluster_of(namespace_names.namespace(cluster, namespace_names.WIRE)) == cluster
    assert namespace_names.namespace(cluster, node) != namespace_names.namespace(cluster, namespace_names.WIRE)


@given(st.sets(OWNERS, min_size=1, max_size=30))
def test_switches_have_distinct_unicast_addresses(switches: set[str]) -> None:
    addresses = {namespace_names.switch_mac(name) for name in switches}
    assert len(addresses) == len(switches)
    assert all(int(address[:2], 16) & 0b11 == 0b10 for address in addresses)  # locally administered, unicast


# Wiring


def layout(*ends: str, datapath: str = "auto") -> Layout:
    return resolve(
        Description(
            name="wired",
            nodes=[Node(name=name) for name in ("n1", "n2")],
            switches=[Switch(name=name) for name in ("s1", "s2")],
            links=[Link(ends=pair.split(), datapath=datapath) for pair in ends],
        )
    )


def test_a_link_of_a_nic_to_a_switch_is_one_veth_pair_plugged_into_the_switch() -> None:
    wiring = Wiring(layout("s1:7 n1"))
    (cable,) = wiring.cables
    assert (cable.near, cable.far) == (("", "n1.eth0"), ("n1", "eth0"))
    assert wiring.plugged == {("", "n1.eth0"): "s1"}
    assert wiring.ports["s1"] == {7: ("", "n1.eth0")}
    assert wiring.joins == []


def test_a_trunk_is_one_veth_pair_in_the_wire_namespace() -> None:
    wiring = Wiring(layout("n1 s1", "s1 s2"))
    trunk = wiring.cables[1]
    assert (trunk.near, trunk.far) == (("", "s1.s2"), ("", "s2.s1"))
    assert wiring.plugged[trunk.near] == "s1"
    assert wiring.plugged[trunk.far] == "s2"
    assert not wiring.planned_ports


def test_parallel_trunks_are_numbered_and_have_planned_forwarding() -> None:
    planned = layout("n1 s1", "n2 s2", "s1 s2", "s2 s1")
    assert wire_ends(planned)[2:] == [("s1.s2", "s2.s1"), ("s2.s1.2", "s1.s2.2")]
    assert len(Wiring(planned).planned_ports) == 6
    assert not Wiring(planned).initially_up


def test_a_link_between_two_nodes_is_two_joined_veth_pairs() -> None:
    wiring = Wiring(layout("n1 n2"))
    assert [cable.far for cable in wiring.cables] == [("n1", "eth0"), ("n2", "eth0")]
    assert wiring.joins == [("n1:eth0--n2:eth0", ("", "n1.eth0"), ("", "n2.eth0"))]


def test_a_direct_link_is_one_veth_pair_between_the_nodes() -> None:
    wiring = Wiring(layout("n1 n2", datapath="direct"))
    (cable,) = wiring.cables
    assert (cable.near, cable.far) == (("n1", "eth0"), ("n2", "eth0"))
    assert wiring.wire_devices == []


# Splices


@given(st.sets(st.tuples(OWNERS, PORTS), max_size=20), st.sets(OWNERS, max_size=10))
def test_the_names_of_patches_are_short_enough_and_unique(ends: set[tuple[str, str]], switches: set[str]) -> None:
    devices = [namespace_names.far_end(*end) for end in ends]
    names = devices + [namespace_names.switch(name) for name in switches]
    names += [end for device in devices for end in namespace_names.patch(device)]
    assert all(1 <= len(name) <= 15 for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("n1 n2", ("n1.eth0", "n2.eth0")),
        ("n1 s1", ("n1.eth0", "free+n1.eth0")),
        ("s1 n1", ("free+n1.eth0", "n1.eth0")),
        ("s1 s2", ("s2.s1", "free+s2.s1")),
    ],
)
def test_a_spliced_link_has_two_free_ends_in_the_order_of_its_own(ends: str, expected: tuple[str, str]) -> None:
    planned = layout(ends)
    (link,) = planned.links
    wiring = Wiring(planned, [link.name])
    splice = wiring.splices[link.name]
    assert free_ends(planned, link.name) == (splice.a[1], splice.b[1]) == expected
    stage = wiring.stages[link.name]
    assert (stage.a, stage.b) == (splice.a, splice.b)
    assert (stage.forward[1], stage.backward[1]) == stage_ends(planned, link.name)
    assert {splice.a, splice.b} & wiring.plugged.keys() == ({stage.port} if stage.port is not None else set())
    assert len(wiring.joins) == (stage.port is None)


def test_a_patch_joins_the_switch_with_the_far_end() -> None:
    wiring = Wiring(layout("n1 s1:5", "n2 s1"), ["n1:eth0--s1:5"])
    patch = wiring.cables[1]
    assert (patch.near, patch.far, patch.patch) == (("", "port+n1.eth0"), ("", "free+n1.eth0"), True)
    assert wiring.ports["s1"] == {5: ("", "n1.eth0"), 1: ("", "n2.eth0")}
    assert wiring.plugged[patch.near] == "s1"
    assert wiring.splices["n1:eth0--s1:5"].senders == (("n1", "eth0"), patch.near)


def test_the_ends_of_a_trunk_and_its_patch_that_stay_plugged_in_send_towards_the_free_ends() -> None:
    wiring = Wiring(layout("s1 s2"), ["s1:1--s2:1"])
    assert wiring.plugged == {("", "s1.s2"): "s1", ("", "s2.s1"): "s2", ("", "port+s2.s1"): "s2"}
    assert wiring.splices["s1:1--s2:1"].senders == (("", "s1.s2"), ("", "port+s2.s1"))


def test_a_direct_link_and_a_missing_one_have_no_free_ends() -> None:
    planned = layout("n1 n2", datapath="direct")
    with pytest.raises(ValueError, match="declared direct"):
        free_ends(planned, "n1:eth0--n2:eth0")
    with pytest.raises(ValueError, match="declared direct"):
        Wiring(planned, ["n1:eth0--n2:eth0"])
    with pytest.raises(KeyError):
        free_ends(planned, "n1:eth0--n3:eth0")

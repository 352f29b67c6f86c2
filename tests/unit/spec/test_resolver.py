"""Defaults are derived deterministically, and an edit elsewhere does not change them."""

from __future__ import annotations

import ipaddress
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import DescriptionError
from testbed.spec.layout import End, Impairment, Layout, Nic, Route
from testbed.spec.loader import parse
from testbed.spec.model import Description, Link, Node
from testbed.spec.model import Nic as DescribedNic
from testbed.spec.model import Switch as DescribedSwitch
from testbed.spec.resolver import resolve
from testbed.spec.wiring import wire
from tests.unit.spec.cluster_strategies import descriptions, edits


def nics(layout: Layout) -> dict[End, Nic]:
    return {End(node.name, nic.name): nic for node in layout.nodes for nic in node.nics}


def resolved_layout(text: str) -> Layout:
    return resolve(parse(f'name = "c"\n{text}', "x"))


def nodes(*names: str) -> str:
    return "".join(f'[[node]]\nname = "{name}"\n' for name in names)


def links(*pairs: str) -> str:
    return "".join('[[link]]\nends = ["{}", "{}"]\n'.format(*pair.split()) for pair in pairs)


def test_a_star_is_numbered_from_one() -> None:
    layout = resolve(Description.star(300))
    assert layout.nodes[6].name == "n7"
    assert layout.nodes[6].address == "10.0.0.7"
    assert layout.nodes[6].nics[0].addresses == ("10.0.0.7/16",)
    assert layout.nodes[299].address == "10.0.1.44"
    assert layout.links[6].name == "n7:eth0--s1:7"
    assert layout.switches[0].ports == tuple(range(1, 301))
    assert {nic.mtu for nic in nics(layout).values()} == {1500}


def test_nics_and_ports_get_the_next_free_number_and_keep_declared_ones() -> None:
    layout = resolved_layout(
        nodes("n1", "n2") + '[[switch]]\nname = "s1"\n' + links("n1 s1:2", "n1:eth0 n2", "n1 s1", "n2:ib0 s1", "n1 s1")
    )
    assert [link.name for link in layout.links] == [
        "n1:eth1--s1:2", "n1:eth0--n2:eth0", "n1:eth2--s1:1", "n2:ib0--s1:3", "n1:eth3--s1:4",
    ]  # fmt: skip
    assert [nic.name for nic in layout.nodes[0].nics] == ["eth0", "eth1", "eth2", "eth3"]


def test_a_declared_nic_with_another_name_takes_the_first_link_without_a_nic() -> None:
    layout = resolved_layout(
        '[[node]]\nname = "n1"\n[[node.nic]]\nname = "ib0"\nmtu = 4000\n[[node]]\nname = "n2"\n' + links("n1 n2")
    )
    assert layout.links[0].a == End("n1", "ib0")
    assert layout.nodes[0].nics[0].mtu == 4000


def test_a_mac_depends_only_on_the_names() -> None:
    in_star = nics(resolve(Description.star(2)))[End("n2", "eth0")].mac
    in_fat_tree = nics(resolve(Description.fat_tree(4, name="other")))[End("n2", "eth0")].mac
    assert in_star == in_fat_tree
    assert in_star.startswith("02:")


def test_the_address_of_a_name_without_a_number_does_not_depend_on_other_nodes() -> None:
    two_nodes = resolved_layout(nodes("alpha", "beta") + '[[switch]]\nname = "s"\n' + links("alpha s", "beta s"))
    three_nodes = resolved_layout(
        nodes("omega", "alpha", "n1", "beta")
        + '[[switch]]\nname = "s"\n'
        + links("omega s", "n1 s", "beta s", "alpha s")
    )
    before, after = ({node.name: node.address for node in layout.nodes} for layout in (two_nodes, three_nodes))
    assert after["alpha"] == before["alpha"]
    assert after["beta"] == before["beta"]
    assert after["n1"] == "10.0.0.1"


def test_renaming_or_removing_a_node_changes_no_other_address() -> None:
    def addresses(*names: str) -> dict[str, str]:
        cables = links(*(f"{name} s" for name in names))
        layout = resolved_layout(nodes(*names) + '[[switch]]\nname = "s"\n' + cables)
        return {node.name: node.address for node in layout.nodes}

    before = addresses("a1", "a2", "b1", "b2", "n2")
    assert before["n2"] == "10.0.0.2"
    for other_names in (["a1", "zz", "b1", "b2", "n2"], ["b2", "n2"], ["n9", "b2", "a2"]):
        after = addresses(*other_names)
        assert all(after[name] == before[name] for name in other_names if name in before)


def test_a_declared_address_takes_precedence_over_a_number_in_a_name() -> None:
    layout = resolved_layout(
        '[[node]]\nname = "n1"\n[[node]]\nname = "boss"\n[[node.nic]]\naddresses = ["10.0.0.1/16"]\n' + links("n1 boss")
    )
    assert layout.nodes[1].address == "10.0.0.1"
    assert layout.nodes[0].address not in ("", "10.0.0.1")


def test_a_segment_takes_the_network_of_its_declared_address() -> None:
    layout = resolved_layout(
        nodes("n2") + '[[node]]\nname = "n1"\n[[node.nic]]\naddresses = ["10.9.8.1/24"]\n' + links("n1 n2")
    )
    assert [node.address for node in layout.nodes] == ["10.9.8.2", "10.9.8.1"]


def test_nics_get_ipv6_addresses_only_from_a_pool() -> None:
    pair = nodes("n1", "n2") + links("n1 n2")
    assert resolved_layout('network6 = "fd00:1::/48"\n' + pair).nodes[1].nics[0].addresses == (
        "10.0.0.2/16",
        "fd00:1::2/64",
    )
    static = '[[node]]\nname = "n1"\n[[node.nic]]\naddresses = ["2001:db8::5/64"]\n' + nodes("n2") + links("n1 n2")
    layout = resolved_layout(static)
    assert layout.nodes[0].nics[0].addresses == ("10.0.0.1/16", "2001:db8::5/64")
    assert layout.nodes[1].nics[0].addresses == ("10.0.0.2/16",)


def test_the_i_th_segment_gets_the_i_th_network_and_nodes_on_several_forward() -> None:
    layout = resolved_layout(nodes("n1", "n2", "n3", "n4") + links("n1 n2", "n2 n3", "n3 n4"))
    networks = [nic.addresses[0] for node in layout.nodes for nic in node.nics]
    assert networks == ["10.0.0.1/16", "10.0.0.2/16", "10.1.0.2/16", "10.1.0.3/16", "10.2.0.3/16", "10.2.0.4/16"]
    assert [node.forwards for node in layout.nodes] == [False, True, True, False]
    assert layout.nodes[0].routes == (Route("10.1.0.0/16", "10.0.0.2"), Route("10.2.0.0/16", "10.0.0.2"))
    assert layout.nodes[1].routes == (Route("10.2.0.0/16", "10.1.0.3"),)


def test_one_segment_needs_no_routes() -> None:
    for node in resolve(Description.fat_tree(4)).nodes:
        assert node.routes == ()
        assert not node.forwards


def test_two_nics_on_one_segment_do_not_make_a_router() -> None:
    layout = resolved_layout(nodes("n1", "n2") + '[[switch]]\nname = "s"\n' + links("n1 s", "n1 s", "n2 s"))
    assert [node.forwards for node in layout.nodes] == [False, False]
    assert len({nic.addresses for nic in nics(layout).values()}) == 3


def test_more_segments_than_large_networks_get_small_ones() -> None:
    names = [f"n{number}" for number in range(1, 302)]
    pairs = [f"n{number} n{number + 1}" for number in range(1, 301)]
    layout = resolved_layout(nodes(*names) + links(*pairs))
    networks = {ipaddress.ip_interface(nic.addresses[0]).network for nic in nics(layout).values()}
    assert len(networks) == 300
    assert {network.prefixlen for network in networks} == {24}


def test_a_small_pool_is_divided_among_the_segments() -> None:
    layout = resolved_layout('network = "192.168.7.0/24"\n' + nodes("n1", "n2", "n3") + links("n1 n2", "n2 n3"))
    networks = {ipaddress.ip_interface(nic.addresses[0]).network for nic in nics(layout).values()}
    assert len(networks) == 2
    assert all(network.subnet_of(ipaddress.ip_network("192.168.7.0/24")) for network in networks)  # type: ignore[arg-type]


def test_a_pool_with_too_few_addresses_is_an_error() -> None:
    with pytest.raises(DescriptionError, match="room for 7 NICs"):
        resolved_layout('network = "10.0.0.0/29"\n[generate]\nshape = "star"\nnodes = 7\n')
    assert len(resolved_layout('network = "10.0.0.0/29"\n[generate]\nshape = "star"\nnodes = 6\n').nodes) == 6


def test_a_direction_overrides_its_link_and_a_link_the_defaults() -> None:
    layout = resolved_layout(
        """
        [defaults.link]
        delay = "1ms"
        loss = "1%"
        rate = "1gbit"
        [[node]]
        name = "n1"
        [[node]]
        name = "n2"
        [[link]]
        ends = ["n1", "n2"]
        delay = "2ms"
        forward = {loss = 0, jitter = "10us"}
        backward = {delay = "3ms", jitter = "5us", distribution = "normal"}
        """
    )
    assert layout.links[0].forward == Impairment(delay=2_000_000, jitter=10_000, distribution="uniform", rate=10**9)
    assert layout.links[0].backward == Impairment(
        delay=3_000_000, jitter=5_000, distribution="normal", rate=10**9, loss=0.01
    )


def test_a_layout_keeps_the_attributes_of_a_node() -> None:
    layout = resolved_layout(
        """
        [[node]]
        name = "n1"
        cpus = "0-1,3"
        cpu_share = 0.5
        memory = "64MiB"
        environment = {RANK = "0"}
        files = {"/etc/motd" = "hello"}
        """
    )
    node = layout.nodes[0]
    assert (node.cpus, node.cpu_share, node.memory) == ((0, 1, 3), 0.5, 2**26)
    assert (node.environment, node.files, node.nics) == ({"RANK": "0"}, {"/etc/motd": "hello"}, ())


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: {"nodes": (*d.nodes, Node(name="n99")), "links": (*d.links, Link(ends=["n99", "s1"]))},
        lambda d: {"links": (*d.links, Link(ends=["s1", "s3"]))},
        lambda d: {
            "switches": (*d.switches, DescribedSwitch(name="s99")),
            "links": (*d.links, Link(ends=["s99", "s1"])),
        },
        lambda d: {"nodes": (Node(name="n99"), *d.nodes)},
        lambda d: {
            "nodes": d.nodes[:-1],
            "links": tuple(link for link in d.links if d.nodes[-1].name not in link.owners),
        },
        lambda d: {
            "nodes": d.nodes[1:],
            "links": tuple(link for link in d.links if d.nodes[0].name not in link.owners),
        },
    ],
    ids=["node added", "link added", "switch added", "node inserted first", "last node removed", "first node removed"],
)
@pytest.mark.parametrize("description", [Description.star(5), Description.ring(5), Description.fat_tree(4)])
def test_an_edit_changes_no_address_of_other_nodes(description: Description, edit: object) -> None:
    assert callable(edit)
    if description.name == "star-5":
        description = description.model_copy(update={"switches": (*description.switches, DescribedSwitch(name="s3"))})
    before = nics(resolve(description))
    after = nics(resolve(description.model_copy(update=edit(description))))
    for end in before.keys() & after.keys():
        assert after[end] == before[end]
    assert len(before.keys() & after.keys()) >= len(before) - 1


@given(descriptions())
def test_every_layout_keeps_declared_values_and_has_unique_addresses_and_ends(description: Description) -> None:
    layout = resolve(description)
    assert resolve(description) == layout
    all_nics = nics(layout)
    assert max(Counter(nic.mac for nic in all_nics.values()).values(), default=1) == 1
    addresses = [address.partition("/")[0] for nic in all_nics.values() for address in nic.addresses]
    assert len(addresses) == len(set(addresses))
    assert [link.a.owner for link in layout.links] == [link.owners[0] for link in description.links]
    plugs = [end for link in layout.links for end in (link.a, link.b)]
    assert len(plugs) == len(set(plugs))
    for node in description.nodes:
        for described in node.nics:
            check_nic(described, all_nics[End(node.name, described.name or "")], description)


def check_nic(described: DescribedNic, nic: Nic, description: Description) -> None:
    assert described.mac in (None, nic.mac)
    assert nic.mtu == (described.mtu or description.defaults.mtu)
    assert set(described.addresses) <= set(nic.addresses)


@given(descriptions())
def test_every_segment_is_one_network_and_no_two_overlap(description: Description) -> None:
    layout = resolve(description)
    all_nics = nics(layout)
    networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for segment in wire(description.nodes, description.switches, description.links).segments:
        own_networks = {
            ipaddress.ip_interface(a).network for nic in segment.nics for a in all_nics[nic].addresses if "." in a
        }
        assert len(own_networks) == bool(segment.nics)
        networks += own_networks
    assert not any(a.overlaps(b) for i, a in enumerate(networks) for b in networks[:i])


@given(descriptions())
def test_every_route_reaches_its_network_through_neighbours(description: Description) -> None:
    layout = resolve(description)
    owner = {address.partition("/")[0]: node for node in layout.nodes for nic in node.nics for address in nic.addresses}
    own_networks = {
        node.name: {str(ipaddress.ip_interface(address).network) for nic in node.nics for address in nic.addresses}
        for node in layout.nodes
    }
    for node in layout.nodes:
        for route in node.routes:
            current, hops = node, 0
            while route.destination not in own_networks[current.name]:
                via = next(
                    known_route.via for known_route in current.routes if known_route.destination == route.destination
                )
                shared_networks = {
                    text
                    for text in own_networks[current.name]
                    if ipaddress.ip_address(via) in ipaddress.ip_network(text)
                }
                assert shared_networks <= own_networks[owner[via].name], "the gateway is a neighbour"
                assert shared_networks
                current, hops = owner[via], hops + 1
                assert current.forwards
                assert hops <= len(layout.nodes)


@given(st.data())
def test_an_edited_cluster_is_a_valid_cluster(data: st.DataObject) -> None:
    description = data.draw(descriptions())
    edited = data.draw(edits(description))
    assert edited != description
    before, after = nics(resolve(description)), nics(resolve(edited))
    derived = [end for end in before.keys() & after.keys() if not before[end].mac.startswith("02:00:00:00:00")]
    assert all(before[end].mac == after[end].mac for end in derived)

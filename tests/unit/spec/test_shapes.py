"""Builders and shipped topologies: numbers of nodes, switches and links, and connectivity."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from testbed.errors import DescriptionError
from testbed.spec.loader import load, parse, topologies
from testbed.spec.model import Defaults, Description, Impairments, Link, Node
from testbed.spec.resolver import resolve
from testbed.spec.wiring import wire

SIDES = {"left": ["n1", "n2", "n3", "n4"], "right": ["n5", "n6", "n7", "n8"], "bottleneck": ["s1--s2"]}


def counts(description: Description) -> tuple[int, int, int]:
    return len(description.nodes), len(description.switches), len(description.links)


def linked_pairs(description: Description) -> set[frozenset[str]]:
    return {frozenset(link.owners) for link in description.links}


def segments(description: Description) -> int:
    return len(wire(description.nodes, description.switches, description.links).segments)


@pytest.mark.parametrize(
    ("description", "nodes", "switches", "links"),
    [
        (Description.back_to_back(), 2, 0, 1),
        (Description.star(1), 1, 1, 1),
        (Description.star(1023), 1023, 1, 1023),
        (Description.line(1), 1, 1, 1),
        (Description.line(5), 5, 5, 9),
        (Description.ring(5), 5, 5, 10),
        (Description.full_mesh(5), 5, 5, 15),
        (Description.fat_tree(2), 2, 5, 6),
        (Description.fat_tree(4), 16, 20, 48),
        (Description.fat_tree(8), 128, 80, 384),
        (Description.dumbbell(3, 2), 5, 2, 6),
        (Description.now(), 100, 40, 187),
    ],
    ids=lambda value: value.name if isinstance(value, Description) else None,
)
def test_a_shape_has_the_expected_elements_in_one_segment(
    description: Description, nodes: int, switches: int, links: int
) -> None:
    assert counts(description) == (nodes, switches, links)
    assert segments(description) == 1
    assert [node.name for node in description.nodes] == [f"n{number}" for number in range(1, nodes + 1)]
    assert [switch.name for switch in description.switches] == [f"s{number}" for number in range(1, switches + 1)]


def test_a_line_and_a_ring_link_neighbouring_switches() -> None:
    switches = [f"s{number}" for number in range(1, 6)]
    between_switches = {
        pair for pair in linked_pairs(Description.line(5)) if all(name.startswith("s") for name in pair)
    }
    assert between_switches == {frozenset(pair) for pair in pairwise(switches)}
    assert linked_pairs(Description.ring(5)) - linked_pairs(Description.line(5)) == {frozenset({"s5", "s1"})}


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_every_switch_of_a_fat_tree_has_k_links_and_every_pod_reaches_every_core(k: int) -> None:
    tree = Description.fat_tree(k)
    degree = Counter(owner for link in tree.links for owner in link.owners)
    assert {degree[switch.name] for switch in tree.switches} == {k}
    assert {degree[node.name] for node in tree.nodes} == {1}
    core = [f"s{number}" for number in range(1, k * k // 4 + 1)]
    for switch in core:
        neighbours = {name for link in tree.links if switch in link.owners for name in link.owners} - {switch}
        pods = {(int(name[1:]) - len(core) - 1) // k for name in neighbours}
        assert pods == set(range(k))


def test_the_now_has_100_hosts_on_40_switches_of_at_most_8_ports_in_three_subclusters() -> None:
    now = Description.now()
    degree = Counter(owner for link in now.links for owner in link.owners)
    assert max(degree[switch.name] for switch in now.switches) <= 8
    assert {switch.kind for switch in now.switches} == {"myrinet"}
    assert len(linked_pairs(now)) == len(now.links), "no parallel cables"
    # Without the last six cables the three subclusters are separate.
    subclusters = wire(now.nodes, now.switches, now.links[:-6]).segments
    assert [(len(part.nics), len(part.switches)) for part in subclusters] == [(34, 13), (30, 14), (36, 13)]
    assert {switch.kind for switch in Description.now(kind="ethernet").switches} == {"ethernet"}


def test_a_shape_has_switches_of_the_requested_kind_with_the_required_ports() -> None:
    for small_shape in (Description.ring(4, kind="myrinet"), Description.dumbbell(3, 7, kind="myrinet")):
        assert {(switch.kind, switch.max_ports) for switch in small_shape.switches} == {("myrinet", 8)}
    (many_ports,) = Description.star(16, kind="myrinet").switches
    assert (many_ports.kind, many_ports.max_ports) == ("myrinet", 16)
    text = 'name = "star-16"\n[generate]\nshape = "star"\nnodes = 16\nkind = "myrinet"'
    assert parse(text, "x") == Description.star(16, kind="myrinet")
    for nodes in (33, 2_000):
        with pytest.raises(DescriptionError, match="at most 32 ports on a Myrinet switch"):
            Description.star(nodes, kind="myrinet")
    with pytest.raises(DescriptionError, match="expected ethernet, myrinet or atm"):
        Description.line(3, kind="token ring")
    with pytest.raises(DescriptionError, match="unknown key 'kind'"):
        Description.back_to_back(kind="myrinet")


def test_options_of_a_builder_equal_those_of_toml() -> None:
    built = Description.star(4, name="mine", seed=7, mtu=9000, delay="10us", loss="1%")
    text = """
    name = "mine"
    seed = 7
    [generate]
    shape = "star"
    nodes = 4
    [defaults]
    mtu = 9000
    [defaults.link]
    delay = "10us"
    loss = "1%"
    """
    assert built == parse(text, "mine.toml")
    assert resolve(built).links[3].backward.delay == 10_000


def test_a_builder_sets_pools_of_addresses_and_the_mtu() -> None:
    built = Description.star(2, network="192.168.0.0/16", network6="fd00::/48", mtu=9000, loss="1%")
    text = """
    name = "star-2"
    network = "192.168.0.0/16"
    network6 = "fd00::/48"
    [generate]
    shape = "star"
    nodes = 2
    [defaults]
    mtu = 9000
    link = {loss = "1%"}
    """
    assert built == parse(text, "star-2.toml")
    (nic,) = resolve(built).nodes[0].nics
    assert nic.mtu == 9000
    assert nic.addresses == ("192.168.0.1/16", "fd00::1/64")
    with pytest.raises(DescriptionError, match="found 'fd00::', expected"):
        Description.star(2, network="fd00::")


def test_the_bottleneck_of_a_dumbbell_has_its_own_impairments() -> None:
    built = Description.dumbbell(2, 2, bottleneck={"rate": "10mbit"}, delay="1ms")
    text = 'shape = "dumbbell"\nleft = 2\nright = 2\nbottleneck = {rate = "10mbit"}\n'
    assert built == parse(f'name = "dumbbell-4"\n[generate]\n{text}[defaults.link]\ndelay = "1ms"', "x")
    links = resolve(built).links
    assert [link.forward.rate for link in links] == [0, 0, 0, 0, 10_000_000]
    assert {link.forward.delay for link in links} == {1_000_000}


def test_listed_nodes_and_links_are_added_to_a_generated_shape() -> None:
    text = """
    [generate]
    shape = "star"
    nodes = 2
    [[node]]
    name = "monitor"
    [[link]]
    ends = ["monitor", "s1"]
    delay = "1ms"
    """
    description = parse(text, "x")
    assert description.name == "star-2"
    assert [node.name for node in description.nodes] == ["n1", "n2", "monitor"]
    assert description.links[-1] == Link(ends=["monitor", "s1"], delay="1ms")


def test_builders_and_loaders_of_a_subclass_return_the_subclass() -> None:
    class Cluster(Description):
        def up(self) -> str:
            return self.name

    assert Cluster.star(4).up() == "star-4"
    assert Cluster.load("star-4").up() == "star-4"
    assert Cluster.load("star-5").up() == "star-5"
    assert Cluster.from_toml('name = "x"\n[[node]]\nname = "n1"').up() == "x"
    assert Cluster.load("star-4") == Cluster.star(4)


def test_elements_constructed_in_python_equal_those_of_toml() -> None:
    built = Description(
        name="pair",
        defaults=Defaults(mtu=9000, link=Impairments(delay="1ms")),
        nodes=[Node(name="a", cpus="0-1"), Node(name="b", memory="1GiB")],
        links=[Link(ends=("a", "b"), backward={"loss": "1%"})],
    )
    text = """
    name = "pair"
    defaults = {mtu = 9000, link = {delay = "1ms"}}
    node = [{name = "a", cpus = [1, 0]}, {name = "b", memory = "1024MiB"}]
    [[link]]
    ends = ["a", "b"]
    backward = {loss = 0.01}
    """
    assert built == parse(text, "x")


@pytest.mark.parametrize(("name", "purpose"), topologies())
def test_a_shipped_topology_states_its_purpose_in_its_first_line(name: str, purpose: str) -> None:
    loaded_cluster = load(name)
    assert loaded_cluster.origin == f"topology:{name}"
    assert loaded_cluster.description.name == name
    assert loaded_cluster.description.description == purpose
    assert resolve(loaded_cluster.description).nodes


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("back-to-back", Description.back_to_back()),
        ("star-4", Description.star(4)),
        ("star-16", Description.star(16)),
        ("star-100", Description.star(100)),
        ("star-7", Description.star(7)),
        ("line-4", Description.line(4)),
        ("ring-4", Description.ring(4)),
        ("full-mesh-4", Description.full_mesh(4)),
        ("fat-tree-4", Description.fat_tree(4)),
        ("dumbbell-8", Description.dumbbell(4, 4, tags=SIDES)),
    ],
)
def test_a_shipped_shape_equals_its_builder(name: str, built: Description) -> None:
    assert load(name).description == built


def test_the_five_papers_clusters_are_shipped() -> None:
    names = {name for name, _ in topologies()}
    assert names >= {"now-1998", "emp-2001", "ssam-1995", "ssam-1995-switch", "lam-via-2000", "openmx-2009"}
    assert counts(load("now-1998").description) == (100, 40, 187)
    assert load("ssam-1995-switch").description.switches[0].kind == "atm"
    assert resolve(load("emp-2001").description).links[0].forward.rate == 10**9
    assert counts(load("lam-via-2000").description) == (4, 1, 4)
    assert counts(load("openmx-2009").description) == (2, 0, 1)
    pairs = ((0, 1), (2, 3), (4, 5), (6, 7))
    assert [(node.cores, node.caches) for node in load("openmx-2009").description.nodes] == [(8, pairs)] * 2

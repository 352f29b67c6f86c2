"""Warnings of NICs with different MTUs in one layer-2 network."""

from __future__ import annotations

import pytest

from testbed.spec.elements import Defaults, Link, Nic, Node, Switch
from testbed.spec.model import Description


def node(name: str, *mtus: int | None) -> Node:
    return Node(name=name, nics=[Nic(mtu=mtu) for mtu in mtus])


def cluster(nodes: list[Node], *links: str, mtu: int = 1500) -> Description:
    switches = sorted({end for pair in links for end in pair.split() if end.startswith("s")})
    return Description(
        name="c",
        nodes=nodes,
        switches=[Switch(name=name) for name in switches],
        links=[Link(ends=pair.split()) for pair in links],
        defaults=Defaults(mtu=mtu),
    )


def test_a_network_of_different_mtus_is_named_with_its_first_switch_and_two_nics() -> None:
    nodes = [node("n1", None), node("n2", 9000), node("n3", 600), node("n4", 9000)]
    assert cluster(nodes, "n1 s1", "n2 s1", "s1 s2", "n3 s2", "n4 s2").warnings() == [
        "the network of switch s1 has NICs of different MTUs, n2:eth0 with 9,000 and n3:eth0 with 600 bytes: longer frames "
        "to n3:eth0 are dropped"
    ]


def test_a_link_between_two_nodes_is_named_with_both() -> None:
    assert cluster([node("n1", 1400), node("n2")], "n1 n2").warnings() == [
        "the network of n1 and n2 has NICs of different MTUs, n2:eth0 with 1,500 and n1:eth0 with 1,400 bytes: longer "
        "frames to n1:eth0 are dropped"
    ]


def test_each_network_has_a_warning() -> None:
    nodes = [node("n1", 9000, 1400), node("n2", None, None), node("n3", 1400)]
    networks = [
        sentence.partition(" has")[0] for sentence in cluster(nodes, "n1 s1", "n2 s1", "n1 n2", "n3 s1").warnings()
    ]
    assert networks == ["the network of switch s1", "the network of n1 and n2"]


@pytest.mark.parametrize(
    "description",
    [
        Description.star(3),
        Description.star(3, mtu=9000),
        cluster([node("n1", 9000), node("n2", 9000)], "n1 s1", "n2 s1"),
        cluster([node("n1", 9000), node("n2", None)], "n1 s1", "n2 s1", mtu=9000),
        cluster([node("n1", 9000, 1500), node("n2", 9000), node("n3")], "n1 s1", "n2 s1", "n1 s2", "n3 s2"),
    ],
    ids=["usual", "jumbo", "declared", "declared as the default", "a router"],
)
def test_equal_mtus_within_each_network_have_none(description: Description) -> None:
    assert description.warnings() == []

"""Every workload on AM-II under loss: two nodes on one cable, and Myrinet switches."""

from __future__ import annotations

import pytest

import testbed
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.model import Description
from tests.sim.small_workloads import SMALL


def pair() -> Description:
    """Return a description of two nodes on one cable."""
    nodes = [Node(name="n1"), Node(name="n2")]
    return Description(name="pair", nodes=nodes, links=[Link(ends=("n1", "n2"), delay="5us", loss="2%")], seed=3)


def myrinet() -> Description:
    """Return two connected switches with five nodes: routes differ in length."""
    ends = [("n1", "s1:1"), ("n2", "s1:2"), ("n3", "s1:3"), ("n4", "s2:1"), ("n5", "s2:2"), ("s1:7", "s2:7")]
    return Description(
        name="myrinet",
        nodes=[Node(name=f"n{number}") for number in range(1, 6)],
        switches=[Switch(name=name, kind="myrinet") for name in ("s1", "s2")],
        links=[Link(ends=link_ends, delay="1us", rate="1.28gbit", loss="1%") for link_ends in ends],
        seed=3,
    )


def reduced_now() -> Description:
    """Return the NOW with all its switches and five distant nodes."""
    complete = Description.now()
    chosen_nodes = {node.name for node in complete.nodes[::20]}
    left_out = {node.name for node in complete.nodes} - chosen_nodes
    links = [link for link in complete.links if left_out.isdisjoint(end.partition(":")[0] for end in link.ends)]
    nodes = [node for node in complete.nodes if node.name in chosen_nodes]
    return Description(name="reduced", nodes=nodes, switches=complete.switches, links=links, seed=3)


@pytest.mark.parametrize("cluster", [pair(), myrinet()], ids=["pair", "myrinet"])
@pytest.mark.parametrize("name", SMALL)
def test_the_workload_survives_loss(name: str, cluster: Description) -> None:
    result = testbed.run(cluster, name, protocol="am2", mode="sim", settings=SMALL[name])
    assert result.rows
    assert any(counters["packets_resent"] for counters in result.counters.values())


def test_random_traffic_crosses_the_now() -> None:
    result = testbed.run(reduced_now(), "random", protocol="am2", mode="sim", settings=SMALL["random"])
    assert sum(counters["sent"] for counters in result.results.values()) == 5 * 30
    assert sum(counters["received"] for counters in result.results.values()) == 5 * 30

"""Forwarding tables of Ethernet with cycles: a broadcast arrives once everywhere, a unicast takes a shortest path."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given

from testbed.spec.layout import End, Layout, Switch
from testbed.spec.model import Description, Link, Node
from testbed.spec.model import Switch as DescribedSwitch
from testbed.spec.resolver import resolve
from tests.unit.spec.cluster_strategies import descriptions


class Network:
    """Forward single frames through a layout by the tables of its switches."""

    def __init__(self, layout: Layout) -> None:
        self.switches = {switch.name: switch for switch in layout.switches}
        self.peer = {a: b for link in layout.links for a, b in ((link.a, link.b), (link.b, link.a))}
        self.macs = {End(node.name, nic.name): nic.mac for node in layout.nodes for nic in node.nics}

    def ports(self, switch: Switch) -> list[int]:
        return list(switch.ports if switch.learns else switch.tree)

    def broadcast(self, sender: End) -> Counter[End]:
        """Count the arrivals of a broadcast at each NIC."""
        arrived: Counter[End] = Counter()
        frames = deque([self.peer[sender]])
        while frames:
            local_end = frames.popleft()
            if local_end.owner not in self.switches:
                arrived[local_end] += 1
                continue
            assert arrived.total() + len(frames) < 10_000, "the broadcast loops"
            output_ports = [port for port in self.ports(self.switches[local_end.owner]) if str(port) != local_end.port]
            frames += [self.peer[End(local_end.owner, str(port))] for port in output_ports]
        return arrived

    def unicast(self, sender: End, mac: str) -> tuple[End, int]:
        """Return the end at which a frame to a MAC arrives, and the number of switches on its way."""
        local_end, hops = self.peer[sender], 0
        while local_end.owner in self.switches:
            hops += 1
            assert hops <= len(self.switches), "the frame loops"
            port = self.switches[local_end.owner].forwarding[mac]
            assert str(port) != local_end.port, "a bridge does not send a frame back out of its input port"
            local_end = self.peer[End(local_end.owner, str(port))]
        return local_end, hops

    def distances(self, sender: End) -> dict[End, int]:
        """Count the switches on a shortest path to each NIC."""
        first = self.peer[sender]
        if first.owner not in self.switches:
            return {first: 0}
        nic_distances: dict[End, int] = {}
        distance, queue = {first.owner: 1}, deque([first.owner])
        while queue:
            name = queue.popleft()
            for port in self.switches[name].ports:
                peer_end = self.peer[End(name, str(port))]
                if peer_end.owner not in self.switches:
                    nic_distances.setdefault(peer_end, distance[name])
                elif peer_end.owner not in distance:
                    distance[peer_end.owner] = distance[name] + 1
                    queue.append(peer_end.owner)
        nic_distances.pop(sender, None)
        return nic_distances


def check(layout: Layout) -> None:
    network = Network(layout)
    for sender in network.macs:
        reachable = network.distances(sender)
        assert network.broadcast(sender) == Counter(dict.fromkeys(reachable, 1))
        first = network.peer[sender].owner
        if first in network.switches and not network.switches[first].learns:
            for target, distance in reachable.items():
                assert network.unicast(sender, network.macs[target]) == (target, distance)


CYCLIC = [
    Description.ring(3),
    Description.ring(8),
    Description.full_mesh(6),
    Description.fat_tree(2),
    Description.fat_tree(4),
    Description.now(kind="ethernet"),
]
TREES = [Description.star(5), Description.line(5), Description.dumbbell(2, 3), Description.back_to_back()]


@pytest.mark.parametrize("description", CYCLIC + TREES, ids=lambda description: description.name)
def test_a_broadcast_arrives_once_and_a_unicast_takes_a_shortest_path(description: Description) -> None:
    check(resolve(description))


@given(descriptions(max_nodes=6))
def test_any_cluster_is_forwarded_on_shortest_paths_without_duplicates(description: Description) -> None:
    check(resolve(description))


@pytest.mark.parametrize("description", TREES, ids=lambda description: description.name)
def test_switches_without_a_cycle_learn(description: Description) -> None:
    for switch in resolve(description).switches:
        assert switch.learns
        assert (switch.tree, switch.forwarding) == ((), {})


@pytest.mark.parametrize("description", CYCLIC[:-2], ids=lambda description: description.name)
def test_switches_in_a_cycle_know_every_mac_and_do_not_learn(description: Description) -> None:
    layout = resolve(description)
    macs = {nic.mac for node in layout.nodes for nic in node.nics}
    for switch in layout.switches:
        learns = description.name == "fat-tree-2"  # with one core switch it is a tree
        assert switch.learns == learns
        assert learns or set(switch.forwarding) == macs


def test_two_cables_between_the_same_switches_are_a_cycle() -> None:
    ends = [("n1", "s1"), ("n2", "s2"), ("s1", "s2"), ("s1", "s2")]
    description = Description(
        name="twin",
        nodes=[Node(name="n1"), Node(name="n2")],
        switches=[DescribedSwitch(name="s1"), DescribedSwitch(name="s2")],
        links=[Link(ends=pair) for pair in ends],
    )
    layout = resolve(description)
    assert [switch.learns for switch in layout.switches] == [False, False]
    assert [switch.tree for switch in layout.switches] == [(1, 2), (1, 2)]
    check(layout)


def test_different_destinations_spread_over_equally_short_paths() -> None:
    layout = resolve(Description.fat_tree(8))
    edge = next(switch for switch in layout.switches if any(link.a == End("n1", "eth0") and link.b.owner == switch.name
                                                            for link in layout.links))  # fmt: skip
    use_counts = Counter(edge.forwarding.values())
    upward_counts = [use_counts[port] for port in edge.ports if use_counts[port] > 1]
    assert len(upward_counts) == 4, "all four uplinks carry traffic"
    # 124 destinations over 4 uplinks: 31 each; five standard deviations of a binomial with p = 1/4 are 24.
    assert max(upward_counts) - 31 < 24 > 31 - min(upward_counts)


def test_switches_of_other_kinds_have_no_forwarding_tables() -> None:
    for switch in resolve(Description.now()).switches:
        assert not switch.learns
        assert (switch.tree, switch.forwarding) == ((), {})

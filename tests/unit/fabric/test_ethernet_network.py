"""Ethernet switches, driven by the interface of a fabric: frames are offered, and the network is polled."""

from __future__ import annotations

from functools import partial

import pytest

from testbed.engine.loop import Loop, VirtualClock
from testbed.fabric.ethernet.channel import Channel
from testbed.fabric.ethernet.fabric import FABRIC
from testbed.fabric.interface import SwitchPort, Table, UsesEventQueue
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.spec.layout import Impairment
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

DELAY = 1_000
LEARNING: Table = {}


def mac(node: int) -> bytes:
    return bytes([2, 0, 0, 0, 0, node])


def frame(source: int, destination: int, number: int = 0) -> bytes:
    return mac(destination) + mac(source) + bytes.fromhex("88b5") + bytes([number])


class Star:
    """Nodes at one switch, node n at port n. arrivals: time, node and frame."""

    def __init__(self, nodes: int, table: Table, impairment: Impairment, rules: RuleSet | None = None) -> None:
        self.network = FABRIC.network()
        self.arrivals: list[tuple[int, int, bytes]] = []
        self.up: dict[int, Channel] = {}
        self.down: dict[int, Channel] = {}
        self.table = table
        options = FateOptions(3, rules=rules, fields=known_fields())
        for node in range(1, nodes + 1):
            port = SwitchPort("s1", node)
            self.up[node] = self.network.join(f"n{node}--s1", "forward", impairment, options, end=port)
            self.down[node] = self.network.join(f"n{node}--s1", "backward", impairment, options, start=port)
            self.down[node].receive = partial(self._receive, node)
        self.network.set_switches({"s1": table})

    def _receive(self, node: int, now: int, received: bytes) -> None:
        self.arrivals.append((now, node, received))

    def send(self, now: int, source: int, destination: int, number: int = 0) -> None:
        assert self.up[source].offer(now, frame(source, destination, number))

    def run(self) -> None:
        """Poll at each deadline until no event is left."""
        while (deadline := self.network.deadline) is not None:
            self.network.poll(deadline)

    def destinations(self) -> list[int]:
        """Return the nodes at which frames have arrived since the last call."""
        nodes = [node for _, node, _ in self.arrivals]
        self.arrivals.clear()
        return nodes


@pytest.fixture
def star() -> Star:
    return Star(3, LEARNING, Impairment(delay=DELAY))


def test_a_frame_arrives_after_the_delays_of_its_links(star: Star) -> None:
    star.send(500, 1, 2)
    assert (star.network.deadline, star.up[1].in_flight) == (500 + DELAY, 1)
    star.network.poll(500 + DELAY)
    assert star.arrivals == []
    star.run()
    assert star.arrivals == [(500 + 2 * DELAY, 2, frame(1, 2)), (500 + 2 * DELAY, 3, frame(1, 2))]
    assert (star.up[1].in_flight, star.up[1].counters.delivered) == (0, 1)


def test_a_switch_learns_the_port_of_a_sender(star: Star) -> None:
    star.send(0, 1, 2)
    star.run()
    assert star.destinations() == [2, 3]
    star.send(10_000, 2, 1)
    star.run()
    assert star.destinations() == [1]


def test_a_switch_forgets_only_addresses_learned_at_removed_cables(star: Star) -> None:
    for source in (1, 2):
        star.send(0, source, 3)
    star.run()
    star.destinations()
    for channel in (star.up[1], star.down[1]):
        channel.leave()
    star.network.set_switches({"s1": LEARNING})
    for destination in (1, 2):
        star.send(10_000, 3, destination, destination)
    star.run()
    assert [(node, received[-1]) for _, node, received in star.arrivals] == [(2, 1), (2, 2)]
    star.destinations()
    star.send(20_000, 2, 1)
    star.run()
    assert star.destinations() == [3]


def test_a_switch_with_a_table_forwards_by_it_and_floods_along_the_tree() -> None:
    layout = resolve(Description.fat_tree(4))
    switch = next(switch for switch in layout.switches if 2 < len(switch.tree) < len(switch.ports))
    table = FABRIC.table(layout, switch)
    star = Star(max(switch.ports), table, Impairment())
    first, port = next(iter(switch.forwarding.items()))
    source = next(tree_port for tree_port in switch.tree if tree_port != port)
    learned_frame = bytes.fromhex(first.replace(":", "")) + mac(source) + bytes(10)
    star.up[source].offer(0, learned_frame)
    star.run()
    assert star.destinations() == [port]
    star.up[source].offer(1_000, bytes.fromhex("ffffffffffff") + learned_frame[6:])
    star.run()
    assert star.destinations() == [tree_port for tree_port in switch.tree if tree_port != source]


def test_reserved_group_addresses_are_not_forwarded(star: Star) -> None:
    star.up[1].offer(0, bytes.fromhex("0180c2000001") + mac(1) + bytes(10))
    star.run()
    assert star.destinations() == []
    star.up[1].offer(10_000, bytes.fromhex("0180c2000010") + mac(1) + bytes(10))
    star.run()
    assert star.destinations() == [2, 3]


def test_frames_in_flight_to_a_link_that_leaves_are_lost(star: Star) -> None:
    star.send(0, 1, 2)
    star.network.poll(DELAY)  # the frame is on the links to n2 and n3
    star.down[2].leave()
    star.run()
    assert star.destinations() == [3]
    star.network.set_switches({"s1": LEARNING})
    star.send(10_000, 3, 2)
    star.run()
    assert star.destinations() == [1]


def test_a_removed_switch_gets_no_frames(star: Star) -> None:
    star.network.set_switches({})
    star.send(0, 1, 2)
    star.run()
    assert star.destinations() == []
    assert star.up[1].counters.delivered == 1


def test_a_link_between_two_nics_needs_no_switch() -> None:
    network, arrivals = FABRIC.network(), list[tuple[int, bytes]]()
    channel = network.join("a--b", "forward", Impairment(delay=DELAY, jitter=10), FateOptions(3, fields=known_fields()))
    channel.receive = lambda now, received: arrivals.append((now, received))
    channel.offer(0, frame(1, 2))
    while (deadline := network.deadline) is not None:
        network.poll(deadline)
    [(when, received)] = arrivals
    assert (abs(when - DELAY) <= 10, received) == (True, frame(1, 2))


def test_a_cut_cable_a_rule_and_a_full_queue_lose_frames() -> None:
    rules = RuleSet(known_fields())
    star = Star(2, LEARNING, Impairment(rate=1_000_000, queue_frames=1), rules)
    for number in range(3):
        star.send(0, 1, 2, number)
    assert (star.up[1].entrance.overflowed, star.up[1].entrance.lost) == (1, 0)
    star.up[1].entrance.is_cut = True
    star.send(0, 1, 2, 3)
    assert star.up[1].entrance.lost == 1
    star.up[1].entrance.is_cut = False
    star.run()
    assert [received[-1] for _, _, received in star.arrivals] == [0, 1]
    rules.add(10_000_000, "drop every(1)")
    star.send(10_000_000, 1, 2, 4)
    star.run()
    assert len(star.arrivals) == 2


def test_events_in_the_queue_of_a_loop_are_ordered_with_those_of_the_loop() -> None:
    loop, order = Loop(VirtualClock()), list[str]()
    network = FABRIC.network()
    assert isinstance(network, UsesEventQueue)
    network.use_event_queue(loop.events)
    channel = network.join("a--b", "forward", Impairment(delay=DELAY), FateOptions(3, fields=known_fields()))
    channel.receive = lambda _, received: order.append(f"frame {received[-1]}")
    loop.at(DELAY, lambda _: order.append("before"))
    channel.offer(0, frame(1, 2, 7))
    loop.at(DELAY, lambda _: order.append("after"))
    assert network.deadline is None
    loop.run()
    assert order == ["before", "frame 7", "after"]

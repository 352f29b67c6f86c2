"""Frames cross links without rate and delay in one event, with the same fates and counters as with delays."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from testbed.engine.loop import Loop, VirtualClock
from testbed.fates.records import Record
from testbed.fields import known_fields
from testbed.sim.network import BOTH, Network
from testbed.spec.layout import End
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

TOP = "s5:3--s1:1"  # from the middle of the tree to its top


@dataclass
class Tree:
    """Sixteen hosts in a fat tree, with their received frames."""

    delay: str = ""
    loss: str = "0%"
    loop: Loop = field(default_factory=lambda: Loop(VirtualClock()))
    log: list[Record] = field(default_factory=list)
    received: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = resolve(Description.fat_tree(4, loss=self.loss, **({"delay": self.delay} if self.delay else {})))
        self.network = Network(self.loop, layout, known_fields(), seed=5, log=self.log.append)
        ends = [End(node.name, node.nics[0].name) for node in layout.nodes]
        self.macs = [bytes.fromhex(node.nics[0].mac.replace(":", "")) for node in layout.nodes]
        self.outs = [self.network.outgoing(end) for end in ends]
        for end in ends:
            self.network.incoming(end).set_receiver(lambda now, frame: self.received.append((now, frame)))
        self.link_directions = {
            (name, bound): self.network.link_directions[name, bound]
            for name, _ in self.network.link_directions
            for bound in BOTH
        }

    def send(self, source: int, destination: int, number: int = 0) -> None:
        frame = (
            self.macs[destination]
            + self.macs[source]
            + bytes.fromhex("88b50102")
            + number.to_bytes(2, "big")
            + bytes(100)
        )
        self.outs[source].enter(self.loop.now(), frame)

    def send_all(self) -> None:
        pairs = [
            (source, destination)
            for _ in range(3)
            for destination in range(16)
            for source in range(16)
            if destination != source
        ]
        for number, (source, destination) in enumerate(pairs):
            self.loop.at(number * 100, lambda pair: self.send(*pair), (source, destination, number))
        self.loop.run()


def test_a_frame_through_six_links_takes_one_event() -> None:
    tree = Tree()
    tree.send(0, 15)
    assert len(tree.loop.events) == 1
    ends = [direction.end for direction in tree.link_directions.values() if direction.in_flight]
    assert [end.owner for end in ends] == ["n16"]
    assert [direction.counters.delivered for direction in tree.link_directions.values()].count(1) == 5
    tree.loop.run()
    assert [now for now, _ in tree.received] == [0]
    assert [direction.counters.delivered for direction in tree.link_directions.values()].count(1) == 6


@pytest.mark.parametrize("loss", ["0%", "20%"])
def test_fates_and_counters_do_not_depend_on_delays(loss: str) -> None:
    delayed_tree, undelayed_tree = Tree("1us", loss), Tree("", loss)
    delayed_tree.send_all()
    undelayed_tree.send_all()
    assert sorted(frame for _, frame in undelayed_tree.received) == sorted(frame for _, frame in delayed_tree.received)
    assert sorted(map(Record.to_line, undelayed_tree.log)) == sorted(map(Record.to_line, delayed_tree.log))
    assert bool(undelayed_tree.log) == (loss != "0%")
    for name, direction in undelayed_tree.link_directions.items():
        assert direction.counters.by_name() == delayed_tree.link_directions[name].counters.by_name(), name


def test_frames_of_two_sources_arrive_in_the_order_of_sending() -> None:
    tree = Tree()
    for number in range(50):
        tree.send(0, 15, number)
        tree.send(1, 15, number)
    tree.loop.run()
    numbers = [(frame[6:12], int.from_bytes(frame[16:18], "big")) for _, frame in tree.received]
    assert numbers == [(tree.macs[source], number) for number in range(50) for source in (0, 1)]


def test_frames_in_flight_are_not_overtaken_after_a_delay_is_removed() -> None:
    tree = Tree("1us")
    tree.send(0, 15, 1)

    def remove_delay(now: int) -> None:
        for direction in tree.link_directions.values():
            direction.change(now, Tree().outs[0].impairment)
        tree.send(0, 15, 2)

    tree.loop.at(500, remove_delay)
    tree.loop.run()
    assert [(now, frame[17]) for now, frame in tree.received] == [(1_000, 1), (1_000, 2)]


def test_a_cut_link_drops_the_frames_that_reach_it() -> None:
    tree = Tree()
    cut = [tree.link_directions[TOP, bound] for bound in BOTH]
    for direction in cut:
        direction.is_cut = True
    tree.send_all()
    lost_count = sum(direction.lost for direction in cut)
    assert 0 < lost_count < 3 * 16 * 15
    assert len(tree.received) == 3 * 16 * 15 - lost_count

"""Links without rate and delay take no time, and cost no event but the last one before a NIC; nothing else is different."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from testbed.engine.loop import Loop, VirtualClock
from testbed.fates.records import Record
from testbed.fields import known_fields
from testbed.sim.network import BOTH, Network
from testbed.sim.sim_direction import SimDirection
from testbed.spec.layout import End
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

TOP = "s5:3--s1:1"  # from the middle of the tree to its top


@dataclass
class Tree:
    """Sixteen hosts in a fat tree, and a record of their frames."""

    delay: str = ""
    loss: str = "0%"
    loop: Loop = field(default_factory=lambda: Loop(VirtualClock()))
    log: list[Record] = field(default_factory=list)
    came: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = resolve(Description.fat_tree(4, loss=self.loss, **({"delay": self.delay} if self.delay else {})))
        self.network = Network(self.loop, layout, known_fields(), seed=5, log=self.log.append)
        ends = [End(node.name, node.nics[0].name) for node in layout.nodes]
        self.macs = [bytes.fromhex(node.nics[0].mac.replace(":", "")) for node in layout.nodes]
        self.outs = [self.network.outgoing(end) for end in ends]
        for end in ends:
            self.network.incoming(end).set_receiver(lambda now, frame: self.came.append((now, frame)))
        self.link_directions = {
            (name, bound): self.network.link_directions[name, bound]
            for name, _ in self.network.link_directions
            for bound in BOTH
        }

    def send(self, source: int, to: int, number: int = 0) -> None:
        frame = self.macs[to] + self.macs[source] + bytes.fromhex("88b50102") + number.to_bytes(2, "big") + bytes(100)
        self.outs[source].enter(self.loop.now(), frame)

    def send_all(self) -> None:
        pairs = [(own, to) for _ in range(3) for to in range(16) for own in range(16) if to != own]
        for number, (own, to) in enumerate(pairs):
            self.loop.at(number * 100, lambda pair: self.send(*pair), (own, to, number))
        self.loop.run()


def test_a_frame_through_six_links_is_one_event() -> None:
    tree = Tree()
    tree.send(0, 15)
    assert len(tree.loop.heap) == 1
    held = [way.end for way in tree.link_directions.values() if way.in_flight]
    assert [end.owner for end in held] == ["n16"]
    assert [way.counters.delivered for way in tree.link_directions.values()].count(1) == 5
    tree.loop.run()
    assert [now for now, _ in tree.came] == [0]
    assert [way.counters.delivered for way in tree.link_directions.values()].count(1) == 6


@pytest.mark.parametrize("loss", ["0%", "20%"])
def test_the_same_frames_are_lost_and_counted_as_with_delays(loss: str) -> None:
    slow, quick = Tree("1us", loss), Tree("", loss)
    slow.send_all()
    quick.send_all()
    assert sorted(frame for _, frame in quick.came) == sorted(frame for _, frame in slow.came)
    assert sorted(map(Record.to_line, quick.log)) == sorted(map(Record.to_line, slow.log))
    assert bool(quick.log) == (loss != "0%")
    for place, way in quick.link_directions.items():
        assert way.counters.by_name() == slow.link_directions[place].counters.by_name(), place


def test_frames_keep_their_order() -> None:
    tree = Tree()
    for number in range(50):
        tree.send(0, 15, number)
        tree.send(1, 15, number)
    tree.loop.run()
    numbers = [(frame[6:12], int.from_bytes(frame[16:18], "big")) for _, frame in tree.came]
    assert numbers == [(tree.macs[source], number) for number in range(50) for source in (0, 1)]


def test_frames_in_flight_are_not_overtaken_when_a_delay_is_removed() -> None:
    tree = Tree("1us")
    tree.send(0, 15, 1)

    def hurry(now: int) -> None:
        for way in tree.link_directions.values():
            assert isinstance(way, SimDirection)
            way.change(now, Tree().outs[0].impairment)
        tree.send(0, 15, 2)

    tree.loop.at(500, hurry)
    tree.loop.run()
    assert [(now, frame[17]) for now, frame in tree.came] == [(1_000, 1), (1_000, 2)]


def test_a_cable_that_is_out_loses_what_comes_there() -> None:
    tree = Tree()
    cut = [tree.link_directions[TOP, bound] for bound in BOTH]
    for way in cut:
        way.is_cut = True
    tree.send_all()
    lost = sum(way.lost for way in cut)
    assert 0 < lost < 3 * 16 * 15
    assert len(tree.came) == 3 * 16 * 15 - lost

"""Fates along a path are those of each direction by itself, although a flow's first frame has them drawn in one go."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from testbed.engine.loop import Loop, VirtualClock
from testbed.fates import fate_hash, flows
from testbed.fates.records import Record
from testbed.fields import known_fields
from testbed.sim.network import Network
from testbed.spec.layout import End
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

LAYOUT: Final = resolve(Description.fat_tree(4, loss="20%", delay="1us", rate="1gbit"))
UPWARD: Final = "s5:3--s1:1"  # from the middle of the tree to its top
CHANGES: Final = 40_000  # ns: in the midst of it


def fates(changed: str = "") -> list[Record]:
    """All that befalls what sixteen hosts send each other, three times. changed: a link that loses more from the midst of it
    on, so that its flows count from 1 again."""
    loop, log = Loop(VirtualClock()), list[Record]()
    network = Network(loop, LAYOUT, known_fields(), seed=5, log=log.append)
    outs = [network.outgoing(End(node.name, node.nics[0].name)) for node in LAYOUT.nodes]
    macs = [bytes.fromhex(node.nics[0].mac.replace(":", "")) for node in LAYOUT.nodes]
    pairs = [(own, to) for _ in range(3) for to in range(len(macs)) for own in range(len(macs)) if to != own]

    def send(place: int) -> None:
        own, to = pairs[place]
        outs[own].enter(loop.now(), macs[to] + macs[own] + bytes.fromhex("88b50102") + bytes(100))

    def change(now: int) -> None:
        way = network.link_directions[changed, "forward"]
        way.change(now, replace(way.impairment, loss=0.4))

    for place in range(len(pairs)):
        loop.at(place * 100, send, place)
    if changed:
        loop.at(CHANGES, change)
    loop.run()
    return log


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("changed", ["", UPWARD])
def test_fates_drawn_ahead_are_those_that_each_direction_draws(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def chains(states: bytes, words: tuple[int, ...]) -> tuple[int, ...]:
        actual = together(states, words)
        drawn.append(len(actual))
        return actual

    together = fate_hash.chains
    monkeypatch.setattr(fate_hash, "chains", chains)
    ahead = fates(changed)
    assert set(drawn) == {4, 6}  # the paths through the tree that are worth it: within a part of it, and over its top
    monkeypatch.setattr(flows, "_MIN_PATH", flows.MAX_PATH + 1)
    drawn.clear()
    assert fates(changed) == ahead
    assert drawn == []
    links = {record.link for record in ahead}
    assert links == {link.name for link in LAYOUT.links}
    assert {record.epoch for record in ahead if record.link == UPWARD} == ({0, 1} if changed else {0})

"""Fates that are drawn for a complete path at once equal those that each link direction draws separately."""

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
CHANGES: Final = 40_000  # ns; during the traffic


def fates(changed_link: str = "") -> list[Record]:
    """Return the fates of the frames that sixteen hosts send each other, three times. changed_link: a link that loses
    more from the middle of the traffic on, so that its flows restart counting."""
    loop, log = Loop(VirtualClock()), list[Record]()
    network = Network(loop, LAYOUT, known_fields(), seed=5, log=log.append)
    outs = [network.outgoing(End(node.name, node.nics[0].name)) for node in LAYOUT.nodes]
    macs = [bytes.fromhex(node.nics[0].mac.replace(":", "")) for node in LAYOUT.nodes]
    pairs = [
        (source, destination)
        for _ in range(3)
        for destination in range(len(macs))
        for source in range(len(macs))
        if destination != source
    ]

    def send(pair_index: int) -> None:
        source, destination = pairs[pair_index]
        outs[source].enter(loop.now(), macs[destination] + macs[source] + bytes.fromhex("88b50102") + bytes(100))

    def change(now: int) -> None:
        direction = network.link_directions[changed_link, "forward"]
        direction.change(now, replace(direction.impairment, loss=0.4))

    for pair_index in range(len(pairs)):
        loop.at(pair_index * 100, send, pair_index)
    if changed_link:
        loop.at(CHANGES, change)
    loop.run()
    return log


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("changed_link", ["", UPWARD])
def test_fates_drawn_for_a_path_equal_those_of_each_direction(
    changed_link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_lengths: list[int] = []

    def chains(states: bytes, words: tuple[int, ...]) -> tuple[int, ...]:
        results = original_chains(states, words)
        path_lengths.append(len(results))
        return results

    original_chains = fate_hash.chains
    monkeypatch.setattr(fate_hash, "chains", chains)
    drawn_ahead = fates(changed_link)
    assert set(path_lengths) == {
        4,
        6,
    }  # lengths of the paths drawn ahead: within a pod, and over the core
    monkeypatch.setattr(flows, "_MIN_PATH", flows.MAX_PATH + 1)
    path_lengths.clear()
    assert fates(changed_link) == drawn_ahead
    assert path_lengths == []
    links = {record.link for record in drawn_ahead}
    assert links == {link.name for link in LAYOUT.links}
    assert {record.epoch for record in drawn_ahead if record.link == UPWARD} == ({0, 1} if changed_link else {0})

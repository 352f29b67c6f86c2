"""Myrinet networks in the simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import UnsupportedError
from testbed.fabric.myrinet.fabric import Myrinet
from testbed.fabric.myrinet.settings import Settings
from testbed.fates.headers import standard_fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.sim.recorder import CAPTURE, FATES, TRACE
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.layout import Impairment, Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.sim.myrinet_senders import MyrinetSenderPlug

SECOND = 1_000_000_000


def line() -> Layout:
    """Return n1 and n2 at s1, n3 and n4 at s2, and one cable between the switches."""
    nodes = [Node(name=f"n{number}") for number in range(1, 5)]
    switches = [Switch(name=name, kind="myrinet") for name in ("s1", "s2")]
    ends = [("n1", "s1:1"), ("n2", "s1:2"), ("n3", "s2:1"), ("n4", "s2:2"), ("s1:3", "s2:3")]
    return resolve(Description(name="line", nodes=nodes, switches=switches, links=[Link(ends=pair) for pair in ends]))


MIDDLE = "s1:3--s2:3"


def ring_doorbells(simulation: Simulation, pairs: list[tuple[int, int]]) -> None:
    nodes = list(simulation.nodes.values())
    for source, destination in pairs:
        nodes[source].nic.ring_doorbell(destination, 0, 0)


def assert_no_drops(simulation: Simulation) -> None:
    """Check that no link or switch dropped a frame, as no link is impaired."""
    directions = simulation.network.link_directions.values()
    assert sum(direction.counters.dropped + direction.lost + direction.in_flight for direction in directions) == 0
    assert not any(sum(counters.values()) for counters in simulation.network.switch_counters.values())


def test_nodes_of_the_now_exchange_frames_across_subclusters_without_drops() -> None:
    layout = resolve(Description.now())
    plug = MyrinetSenderPlug(layout, size=100)
    steps = (1, 7, 37, 50, 99)
    with Simulation(layout, plug) as simulation:
        ring_doorbells(simulation, [(source, (source + step) % 100) for step in steps for source in range(100)])
        simulation.run_until(SECOND)
        assert_no_drops(simulation)
    for number, sender in enumerate(plug.senders):
        assert sorted(source for _, source, _ in sender.arrivals) == sorted((number - step) % 100 for step in steps)
        assert not sender.invalid


def test_backpressure_delivers_all_frames_of_ninety_nine_senders_to_one_node() -> None:
    layout = resolve(Description.now())
    plug = MyrinetSenderPlug(layout)
    with Simulation(layout, plug) as simulation:
        ring_doorbells(simulation, [(source, 0) for _ in range(3) for source in range(1, 100)])
        waiting_count = sum(direction.waiting_count for direction in simulation.network.link_directions.values())
        assert waiting_count == 2 * 99  # in the memory of the senders' NICs, the only queue
        simulation.run_until(SECOND)
        assert_no_drops(simulation)
    arrived = plug.senders[0].arrivals
    assert Counter(source for _, source, _ in arrived) == dict.fromkeys(range(1, 100), 3)
    for source in range(1, 100):
        assert [number for _, sender, number in arrived if sender == source] == [1, 2, 3]


def test_a_slow_cable_blocks_only_the_outputs_on_its_worms_paths() -> None:
    """A worm moves on all links at the rate of its slowest one."""
    layout = line()
    plug = MyrinetSenderPlug(layout)
    with Simulation(layout, plug) as simulation:
        simulation.change(MIDDLE, Impairment(rate=10_000_000))
        ring_doorbells(simulation, [(0, 2)] * 10 + [(3, 2)] * 10 + [(2, 3)] * 10)
        simulation.run_until(SECOND)
        assert_no_drops(simulation)
    slow_time = 800_000  # ns for 1,000 bytes at 10 Mb/s
    ends = {node: max(time for time, source, _ in plug.senders[2].arrivals if source == node) for node in (0, 3)}
    assert 10 * slow_time < ends[0] < 11 * slow_time
    assert 8 * slow_time < ends[3] < 10 * slow_time  # frames of both sources in turn
    assert max(time for time, _, _ in plug.senders[3].arrivals) < slow_time


def test_loss_rules_and_cuts_apply_to_a_cable_between_switches() -> None:
    layout = line()
    rules = RuleSet(standard_fields())
    log: list[Record] = []
    plug = MyrinetSenderPlug(layout)
    with Simulation(layout, plug, rules=rules, log=log.append) as simulation:
        direction = simulation.network.link_directions[MIDDLE, "forward"]
        simulation.change(MIDDLE, Impairment(loss=0.5))
        ring_doorbells(simulation, [(0, 2)] * 40)
        simulation.run_until(1_000_000)
        assert 5 < direction.counters.loss == 40 - len(plug.senders[2].arrivals) < 35
        simulation.change(MIDDLE, Impairment())
        with rules.add(simulation.now(), f'drop link == "{MIDDLE}" and nth(2)'):
            ring_doorbells(simulation, [(1, 3)] * 3)
            simulation.run_until(2_000_000)
        assert [number for _, _, number in plug.senders[3].arrivals] == [1, 3]
        simulation.cut(MIDDLE)
        ring_doorbells(simulation, [(1, 3), (1, 0)])
        simulation.run_until(3_000_000)
        simulation.restore(MIDDLE)
        ring_doorbells(simulation, [(1, 3)])
        simulation.run_until(4_000_000)
        assert direction.lost == 1
    assert [number for _, _, number in plug.senders[3].arrivals] == [1, 3, 6]
    assert [number for _, _, number in plug.senders[0].arrivals] == [5]
    assert Counter(record.cause for record in log) == {"loss": direction.counters.loss, "rule": 1}
    assert {record.link for record in log} == {MIDDLE}


def run_recorded(folder: Path, seed: int = 1) -> dict[str, bytes]:
    layout = line()
    plug = MyrinetSenderPlug(layout)
    with Simulation(layout, plug, seed=seed, folder=folder) as simulation:
        simulation.change(MIDDLE, Impairment(loss=0.2, corrupt=0.2, delay=3_000))
        ring_doorbells(simulation, [(0, 2), (1, 3), (1, 2), (3, 0)] * 20)
        simulation.run_until(SECOND)
    return {name: (folder / name).read_bytes() for name in (CAPTURE, FATES, TRACE)}


def test_recordings_are_equal_for_equal_seeds_and_differ_otherwise(tmp_path: Path) -> None:
    first, second, other_seed = (run_recorded(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first == second
    assert first[FATES] != other_seed[FATES]
    assert first[FATES].count(b'"loss"') > 2
    assert b"dropped by loss" in first[CAPTURE]


def test_frames_that_a_switch_does_not_forward_are_captured_traced_and_counted(tmp_path: Path) -> None:
    layout = line()
    plug = MyrinetSenderPlug(layout)
    plug.routes = {**plug.routes, ("n1", "n3"): b"\x87", ("n1", "n4"): b"\x88"}
    with Simulation(layout, plug, folder=tmp_path) as simulation:
        ring_doorbells(simulation, [(0, 2), (0, 3)])
        simulation.run_until(SECOND)
        counters = simulation.network.switch_counters["s1"]
        assert {cause: count for cause, count in counters.items() if count} == {"no_cable": 1, "no_port": 1}
    assert b"without a cable" in (tmp_path / CAPTURE).read_bytes()
    assert '"node": "s1", "what": "loses a frame", "port": 1' in (tmp_path / TRACE).read_text()


def test_switches_truncate_deadlocked_worms_after_the_configured_timeout(tmp_path: Path) -> None:
    """Four switches in a ring, port 2 to the next one's port 1; each worm crosses three. Three worms are truncated."""
    nodes = [Node(name=f"n{number}") for number in range(1, 5)]
    switches = [Switch(name=f"s{number}", kind="myrinet") for number in range(1, 5)]
    links = [Link(ends=(f"n{number}", f"s{number}:3")) for number in range(1, 5)]
    links += [Link(ends=(f"s{number}:2", f"s{number % 4 + 1}:1")) for number in range(1, 5)]
    layout = resolve(Description(name="ring", nodes=nodes, switches=switches, links=links))
    plug = MyrinetSenderPlug(layout)
    plug.routes = {(f"n{index}", f"n{(index + 1) % 4 + 1}"): bytes([0xBF, 0x81, 0x82]) for index in range(1, 5)}
    with Simulation(
        layout, plug, folder=tmp_path, fabrics={"myrinet": Myrinet(Settings(timeout=1_000_000))}
    ) as simulation:
        ring_doorbells(simulation, [(source, (source + 2) % 4) for source in range(4)])
        simulation.run_until(999_000)
        assert not any(sender.arrivals or sender.invalid for sender in plug.senders)
        simulation.run_until(SECOND)
        assert [counters["truncated"] for counters in simulation.network.switch_counters.values()] == [0, 1, 1, 1]
        assert sum(direction.in_flight for direction in simulation.network.link_directions.values()) == 0
    assert [len(sender.arrivals) for sender in plug.senders] == [0, 1, 0, 0]
    assert [len(sender.invalid) for sender in plug.senders] == [1, 0, 1, 1]
    assert (tmp_path / CAPTURE).read_bytes().count(b"truncated, blocked for too long") == 3
    assert (tmp_path / TRACE).read_text().count("truncates a frame") == 3


def test_a_restarted_node_receives_frames_again() -> None:
    layout = line()
    plug = MyrinetSenderPlug(layout)
    with Simulation(layout, plug) as simulation:
        restart = simulation.crash("n3")
        ring_doorbells(simulation, [(0, 2)])
        simulation.run_until(1_000_000)
        restart()
        ring_doorbells(simulation, [(0, 2)])
        simulation.run_until(2_000_000)
    assert not plug.senders[2].arrivals
    assert [number for _, _, number in plug.senders[4].arrivals] == [2]


def test_frames_that_wait_in_a_nic_are_lost_at_its_restart() -> None:
    layout = line()
    plug = MyrinetSenderPlug(layout)
    with Simulation(layout, plug) as simulation:
        ring_doorbells(simulation, [(0, 2)] * 10)
        simulation.restart("n1")
        ring_doorbells(simulation, [(0, 2)])
        simulation.run_until(SECOND)
    # The first frame was already on the link; the new NIC numbers its frames from 1.
    assert [number for _, _, number in plug.senders[2].arrivals] == [1, 1]


def test_a_queue_on_a_myrinet_link_is_rejected() -> None:
    layout = line()
    links = tuple(replace(link, forward=Impairment(queue=100_000)) for link in layout.links)
    with pytest.raises(UnsupportedError, match=r"n1:eth0--s1:1: a link of a Myrinet network.*no queue"):
        Simulation(replace(layout, links=links), MyrinetSenderPlug(layout))

"""Mappers that know only their own number map networks of every shape, with lost and corrupted frames."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from protocols.myrinet.mapper.settings import MILLISECOND, Settings
from testbed.spec.now import now_cables
from tests.unit.protocols.mapper_networks import (
    Cable,
    Myrinet,
    fat_tree,
    plug_cables,
    random_network,
    ring,
    star,
    torus,
)

LONG = bool(os.environ.get("TESTBED_LONG"))
GRAPHS = 500 if LONG else 25
Note = Callable[[str, object], None]


def berkeley_now() -> list[Cable]:
    """100 hosts, 40 switches, 187 cables; the hosts counted from 0."""
    return plug_cables((int(first[1:]) - 1 if first[0] == "n" else first, second) for first, second in now_cables())


SHAPES: dict[str, list[Cable]] = {
    "back to back": [((0, 0), (1, 0))],
    "star": star(8),
    "ring": ring(5, 2),
    "torus": torus(4),
    "torus with few hosts": torus(4, 5),
    "fat tree": fat_tree(),
    "NOW": berkeley_now(),
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES)


@EVERY_SHAPE
def test_a_network_is_mapped_correctly_and_its_routes_cannot_deadlock(shape: str, record_property: Note) -> None:
    network = Myrinet(SHAPES[shape])
    settle_time = network.settle()
    assert settle_time is not None
    assert not network.deadlock()
    assert not network.crossings
    leader = network.mappers[0]
    assert leader.is_leading
    record_property(
        "note",
        f"mapping, {shape}: {leader.counters.probes_sent:,} probes of the leader, {network.probes_sent():,} of all, "
        f"{settle_time // MILLISECOND} ms until all hosts have their routes",
    )


@EVERY_SHAPE
@pytest.mark.parametrize(("loss", "damage"), [(0.1, 0.0), (0.02, 0.03)], ids=["lost", "damaged"])
def test_a_network_that_loses_and_corrupts_frames_is_mapped_correctly(shape: str, loss: float, damage: float) -> None:
    if shape == "NOW" and not LONG:
        loss, damage = loss / 5, damage / 5
    network = Myrinet(SHAPES[shape], loss=loss, damage=damage, seed=1)
    assert network.settle(20_000 * MILLISECOND) is not None
    assert not network.deadlock()


@pytest.mark.timeout(300)
def test_random_networks_are_mapped_correctly(record_property: Note) -> None:
    """Random networks of 1 to 64 switches, with double cables, bridges and parts without hosts, all of which are in the
    leader's map."""
    probes, longest, failed_seeds = 0, 0, []
    for seed in range(GRAPHS):
        network = Myrinet(random_network(seed), leaders={0})
        settle_time = network.settle()
        if settle_time is None or network.deadlock() or network.crossings:
            failed_seeds.append(seed)
        else:
            probes, longest = probes + network.probes_sent(), max(longest, settle_time)
    assert not failed_seeds
    record_property(
        "note",
        f"mapping, {GRAPHS} random networks: {probes // GRAPHS:,} probes on average, {longest // MILLISECOND} ms at most",
    )


def test_maps_and_routes_follow_a_random_failure_and_its_repair(record_property: Note) -> None:
    failed_seeds, longest = [], 0
    for seed in range(GRAPHS // 2):
        network = Myrinet(random_network(seed, max_nodes=10))
        cables = network.cables
        settle_times = [network.settle()]
        if seed % 2:
            cut = [cables[seed % len(cables)]]
            network.cut(cut[0])
        else:
            switch = cables[seed % len(cables)][1][0]
            assert isinstance(switch, str)
            cut = [cable for cable in cables if switch in (cable[0][0], cable[1][0])]
            network.fail(switch)
        settle_times.append(network.settle())
        deadlock = network.deadlock()
        for cable in cut:
            network.join(cable)
        settle_times.append(network.settle())
        if None in settle_times or deadlock or network.deadlock():
            failed_seeds.append(seed)
        else:
            longest = max(longest, *(time or 0 for time in settle_times[1:]))
    assert not failed_seeds
    record_property("note", f"mapping, {GRAPHS // 2} failures and repairs: {longest // MILLISECOND} ms at most")


def test_a_cable_within_one_switch_is_mapped_and_used_by_no_route() -> None:
    for hosts in (1, 2):
        ends: list[tuple[str | int, str | int]] = [("a", "b"), ("b", "b"), ("b", "c"), ("c", "c"), (0, "a")]
        network = Myrinet(plug_cables(ends + [(number, "c") for number in range(1, hosts)]))
        assert network.settle() is not None
        topology = network.mappers[0].topology
        assert topology is not None
        assert [first.switch == second.switch for first, second in topology.cables()].count(True) == 2


def test_switches_of_sixteen_ports_need_a_setting() -> None:
    cables = [((number, 0), ("s", 2 * number)) for number in range(8)]
    assert Myrinet(cables, ports=16).settle() is not None
    eight_ports = Myrinet(cables, ports=16, settings=Settings(ports=8))
    eight_ports.run(1_000 * MILLISECOND)
    assert not eight_ports.is_mapped(eight_ports.mappers)


def test_probes_do_not_exceed_the_configured_rate() -> None:
    settings = Settings(interval=100_000, burst=4)
    network = Myrinet(fat_tree(), settings=settings, leaders={0})
    assert network.settle() is not None
    sent_times = network.sent_at
    for first, last in ((i, j) for i in range(0, len(sent_times), 7) for j in range(i + 4, len(sent_times), 11)):
        assert sent_times[last] - sent_times[first] >= (last - first + 1 - settings.burst) * settings.interval


def test_watching_an_idle_network_takes_few_probes(record_property: Note) -> None:
    network = Myrinet(berkeley_now())
    assert network.settle() is not None
    leader = network.mappers[0]
    before, watches_before = leader.counters.probes_sent, leader.counters.watches
    tables = {number: mapper.counters.tables_installed for number, mapper in network.mappers.items()}
    network.run(1_000 * MILLISECOND)
    watch_count = leader.counters.watches - watches_before
    probes = leader.counters.probes_sent - before
    assert watch_count >= 8
    assert probes <= watch_count * (len(network.cables) + 2 * 40 * 14 / 4)
    assert tables == {number: mapper.counters.tables_installed for number, mapper in network.mappers.items()}
    assert leader.counters.explorations == 1
    record_property("note", f"mapping, NOW, idle: {probes // watch_count} probes a check, at most 10 checks a second")

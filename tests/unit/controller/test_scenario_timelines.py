"""Scenarios resolved on a cluster: targets, times, and what is rejected before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import Scenario
from testbed.controller.scenarios.feasibility import check
from testbed.controller.scenarios.random_faults import draw_faults
from testbed.controller.scenarios.targets import deaf_nodes, injection_of
from testbed.controller.scenarios.timeline import occurrences_of, resolve_draws, timeline_events
from testbed.errors import DescriptionError, NotFoundError, UnsupportedError
from testbed.spec.fault_models import (
    Churn,
    Crash,
    Down,
    Fault,
    Flap,
    Impair,
    Partition,
    Pause,
    Reset,
    Restart,
    Rule,
    Slow,
    Traffic,
)
from testbed.spec.layout import Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from testbed.spec.scenario import RandomFaults

SECOND = 1_000_000_000
STAR = resolve(Description.star(5))
EVERY_KIND = ["impair", "down", "flap", "partition", "crash", "restart", "reset", "pause", "cpu", "incast"]


def times(scenario: Scenario, layout: Layout = STAR, seed: int = 0) -> list[tuple[int, str, bool]]:
    events = timeline_events(occurrences_of(scenario, layout, seed, 10 * SECOND))
    return [(event.when, event.occurrence.fault.what, event.is_begin) for event in events]


def test_ends_precede_begins_at_the_same_time() -> None:
    scenario = Scenario(
        faults=[Down(on="n2", from_="2s", to="3s"), Down(on="n1", from_="1s", to="2s"), Restart(on="n3", at="2s")]
    )
    assert times(scenario) == [
        (SECOND, "down: n1", True),
        (2 * SECOND, "down: n1", False),
        (2 * SECOND, "down: n2", True),
        (2 * SECOND, "restart on n3", True),
        (2 * SECOND, "restart on n3", False),
        (3 * SECOND, "down: n2", False),
    ]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_random_faults_depend_on_the_seed(seed: int) -> None:
    random_faults = RandomFaults(kinds=EVERY_KIND, rate=20.0)
    first = draw_faults(random_faults, STAR, seed, 10 * SECOND)
    assert first == draw_faults(random_faults, STAR, seed, 10 * SECOND)
    assert first != draw_faults(random_faults, STAR, seed ^ 1, 10 * SECOND)
    assert {occurrence.kind for occurrence in first} == set(EVERY_KIND)
    seeded = RandomFaults(kinds=EVERY_KIND, rate=20.0, seed=5)
    assert draw_faults(seeded, STAR, seed, 10 * SECOND) == draw_faults(seeded, STAR, seed + 1, 10 * SECOND)


@given(st.integers(0, 2**64 - 1), st.floats(0.1, 50), st.lists(st.sampled_from(EVERY_KIND), min_size=1, unique=True))
def test_random_faults_are_valid_and_within_their_span(seed: int, rate: float, kinds: list[str]) -> None:
    random_faults = RandomFaults(kinds=kinds, rate=rate, from_="1s", to="4s", shortest="20ms", longest="50ms")
    faults = draw_faults(random_faults, STAR, seed, 10 * SECOND)
    check(Scenario(faults=faults), STAR, "sim")
    assert all(SECOND <= fault.begin < 4 * SECOND and fault.kind in kinds for fault in faults)
    assert all(fault.for_ is None or 20_000_000 <= fault.for_ <= 50_000_000 for fault in faults)


def test_random_faults_occur_at_the_configured_rate() -> None:
    """A Poisson process with a mean of 2,000: five standard deviations are 224, exceeded by one seed in a million."""
    random_faults = RandomFaults(kinds=["pause"], rate=200.0, seed=1)
    assert abs(len(draw_faults(random_faults, STAR, 0, 10 * SECOND)) - 2_000) < 224


def test_random_faults_stay_on_their_targets() -> None:
    random_faults = RandomFaults(kinds=["pause", "flap"], rate=20.0, on=["n2", "n3"])
    targets = {
        name
        for fault in draw_faults(random_faults, STAR, 0, 10 * SECOND)
        if isinstance(fault, Pause | Flap)
        for name in fault.on
    }
    assert targets == {"n2", "n3", "n2:eth0--s1:2", "n3:eth0--s1:3"}


def test_a_random_partition_separates_only_the_targets() -> None:
    random_faults = RandomFaults(kinds=["partition"], rate=20.0, on=["n2", "n3", "n4"])
    partitions = [fault for fault in draw_faults(random_faults, STAR, 0, 10 * SECOND) if isinstance(fault, Partition)]
    check(Scenario(faults=partitions), STAR, "sim")
    isolated = {fault.node for fault in partitions if fault.groups is None}
    assert isolated == {"n2", "n3", "n4"}
    members = {frozenset(name for group in fault.groups for name in group) for fault in partitions if fault.groups}
    assert members == {frozenset({"n2", "n3", "n4"})}
    alone = draw_faults(RandomFaults(kinds=["partition"], rate=20.0, on="n2"), STAR, 0, SECOND)
    assert {fault.what for fault in alone} == {"partition isolated of n2"}


def test_churn_becomes_restarts_drawn_from_its_seed() -> None:
    scenario = Scenario(faults=[Churn(on=["n1", "n2"], mean="100ms", away="30ms", from_="1s", to="3s")])
    restarts = occurrences_of(scenario, STAR, 7, 10 * SECOND)
    assert restarts
    assert {occurrence.fault.what for occurrence in restarts} == {"restart on n1", "restart on n2"}
    assert all(
        occurrence.end == occurrence.begin + 30_000_000 and SECOND <= occurrence.begin < 3 * SECOND
        for occurrence in restarts
    )
    assert times(scenario, seed=7) == times(scenario, seed=7) != times(scenario, seed=8)


def test_faults_that_occur_too_often_are_rejected() -> None:
    with pytest.raises(DescriptionError, match=r"fault\[1\]: expected a longer 'every' or an earlier 'to'"):
        occurrences_of(Scenario(faults=[Flap(on="n1", at=0, every="1us", for_="1us")]), STAR, 0, SECOND)
    with pytest.raises(DescriptionError, match="random: expected at most 100,000"):
        occurrences_of(Scenario(random=RandomFaults(kinds=["pause"], rate=1e6)), STAR, 0, SECOND)
    with pytest.raises(DescriptionError, match="random: expected at most 100,000"):
        check(Scenario(random=RandomFaults(kinds=["pause"], rate=1e6, to="1s")), STAR, "sim")


# Partitions


def unheard_nodes(fault: Partition) -> dict[str, set[str]]:
    return {name: set(unheard) for name, unheard in deaf_nodes(fault, STAR).items() if unheard}


def test_groups_do_not_receive_each_others_frames_and_a_node_in_none_receives_all() -> None:
    deaf_sets = unheard_nodes(Partition(groups=[["n1", "n2"], ["n3"]], at=0))
    assert deaf_sets == {"n1": {"n3"}, "n2": {"n3"}, "n3": {"n1", "n2"}}


def test_halves_and_an_isolated_node_do_not_receive_from_the_other_side() -> None:
    halves = unheard_nodes(Partition(shape="halves", at=0))
    assert halves["n1"] == {"n3", "n4", "n5"}
    assert halves["n5"] == {"n1", "n2"}
    isolated = unheard_nodes(Partition(shape="isolated", node="n3", at=0))
    assert isolated == {"n3": {"n1", "n2", "n4", "n5"}, **{name: {"n3"} for name in ("n1", "n2", "n4", "n5")}}
    drawn = {next(iter(unheard_nodes(Partition(shape="isolated", seed=seed, at=0))["n1"])) for seed in range(20)}
    assert len(drawn) > 2


def test_a_one_way_partition_drops_the_frames_of_the_first_group() -> None:
    assert unheard_nodes(Partition(groups=[["n1"], ["n2", "n3"]], one_way=True, at=0)) == {"n2": {"n1"}, "n3": {"n1"}}


@given(st.integers(2, 40), st.none() | st.integers(0, 2**64 - 1))
def test_on_a_ring_every_node_receives_from_a_majority_and_no_two_from_the_same_one(
    count: int, seed: int | None
) -> None:
    layout = resolve(Description.star(count))
    deaf_sets = deaf_nodes(Partition(shape="ring-majority", seed=seed, at=0), layout)
    names = {node.name for node in layout.nodes}
    heard = {name: frozenset(names - set(unheard)) for name, unheard in deaf_sets.items()}
    assert heard.keys() == names
    assert all(name in heard_names and 2 * len(heard_names) > count for name, heard_names in heard.items())
    assert len(set(heard.values())) == count or count == 2


# Targets


def test_overlapping_targets_are_impaired_once() -> None:
    injection = injection_of(Impair(on=["n1", "n1--s1", "n2"], direction="", loss="1%", at=0), STAR)
    assert injection is not None
    assert [link for link, _ in injection.places] == ["n1:eth0--s1:1"] * 2 + ["n2:eth0--s1:2"] * 2


def rejection(*faults: Fault, layout: Layout = STAR, mode: str = "sim") -> str:
    with pytest.raises((DescriptionError, UnsupportedError)) as caught:
        check(Scenario(name="storm", faults=faults), layout, mode)
    return str(caught.value)


def test_unknown_names_are_reported_all_at_once() -> None:
    text = rejection(
        Crash(on="n9", at=0),
        Impair(on="n1--n2", loss="1%", at=0),
        Impair(on="n1", direction="up", loss="1%", at=0),
        Rule(rules="drop emp.tipe == 3", at=0),
        Partition(groups=[["n1"], ["m2"]], at=0),
        Traffic(senders=["n1", "n2"], receiver="n2", rate="1mbit", at=0),
        Impair(on="n1", jitter="1ms", at=0),
    ).splitlines()
    assert text[0] == "storm, on star-5: 7 problems"
    assert (
        "fault[1]: found a wrong name, expected a valid one: cluster star-5 has no node 'n9'; it has n1, n2" in text[1]
    )
    assert "no link, node or switch 'n1--n2'" in text[2]
    assert "no direction 'up'" in text[3]
    assert "emp.tipe" in text[4]
    assert "did you mean 'emp.type'" in text[4]
    assert "no node 'm2'" in text[5]
    assert "n2 to itself" in text[6]
    assert "jitter without a delay" in text[7]


def test_a_feature_that_a_mode_lacks_is_rejected_with_the_reason() -> None:
    assert "only a cost model can slow a NIC" in rejection(Slow(on="n1", factor=2.0, at=0), mode="live")
    pair = resolve(Description.back_to_back())
    direct = replace(pair, links=tuple(replace(link, datapath="direct") for link in pair.links))
    assert 'datapath = "direct"' in rejection(Impair(on="all", loss="1%", at=0), layout=direct, mode="live")
    check(Scenario(faults=[Slow(on="n1", factor=2.0, at=0)]), STAR, "sim")


@pytest.mark.parametrize("fault", [Restart(on="n1", at=0), Reset(on="n1", at=0), Crash(on="n1", at=0, for_="1s")])
def test_programs_over_the_kernels_tcp_cannot_be_restarted(fault: Fault) -> None:
    with pytest.raises(UnsupportedError, match="cannot restore connections of the kernel"):
        check(Scenario(faults=[fault]), STAR, "live", over_kernel=True)
    check(Scenario(faults=[Crash(on="n1", at=0)]), STAR, "live", over_kernel=True)


def test_random_faults_on_unknown_elements_are_rejected() -> None:
    with pytest.raises(DescriptionError, match="no link, node or switch 'n77'"):
        check(Scenario(random=RandomFaults(kinds=["pause"], rate=1.0, on="n77")), STAR, "sim")
    with pytest.raises(NotFoundError, match="'on' names no node"):
        draw_faults(RandomFaults(kinds=["pause"], rate=9.0, on="n1--s1"), STAR, 0, 10 * SECOND)


def test_kinds_of_random_faults_without_a_target_are_rejected_whatever_is_drawn() -> None:
    random_faults = RandomFaults(kinds=["flap", "pause"], rate=1.0, on="n1--s1")
    with pytest.raises(DescriptionError, match="'on' names no node, which pause needs"):
        check(Scenario(random=random_faults), STAR, "sim")


def test_random_faults_that_a_network_or_datapath_does_not_support_are_rejected() -> None:
    crossbar = resolve(Description.star(3, kind="myrinet"))
    with pytest.raises(UnsupportedError, match=r"random: incast: .* no source routes"):
        check(Scenario(random=RandomFaults(kinds=["pause", "incast"], rate=1.0)), crossbar, "sim")
    pair = resolve(Description.back_to_back())
    direct = replace(pair, links=tuple(replace(link, datapath="direct") for link in pair.links))
    for kind in ("impair", "partition"):
        with pytest.raises(UnsupportedError, match=r'random: .*datapath = "direct"'):
            check(Scenario(random=RandomFaults(kinds=[kind], rate=1.0)), direct, "live")


def test_resolved_draws_keep_their_times_and_targets_without_the_other_faults() -> None:
    scenario = Scenario.from_toml("""
        [random]
        kinds = ["pause", "reset", "partition", "flap"]
        rate = 5

        [[fault]]
        kind = "impair"
        on = "all"
        at = "1s"
        for = "100ms"
        every = "1s"
        loss = "10%"

        [[fault]]
        kind = "crash"
        on = "all"
        pick = 1
        at = "1s"
        for = "100ms"
        every = "1s"

        [[fault]]
        kind = "restart"
        on = "all"
        pick = 2
        at = "500ms"

        [[fault]]
        kind = "churn"
        at = "0s"
        mean = "700ms"
        away = "30ms"
        """)

    def spans(scenario: Scenario) -> list[tuple[int, int | None, str]]:
        occurrences = occurrences_of(scenario, STAR, 3, 10 * SECOND)
        return [(occurrence.begin, occurrence.end, occurrence.fault.what) for occurrence in occurrences]

    faults = resolve_draws(scenario, STAR, 3, 10 * SECOND)
    resolved = Scenario(faults=faults)
    assert sorted(spans(resolved), key=str) == sorted(spans(scenario), key=str)
    assert spans(Scenario.from_toml(resolved.to_toml())) == spans(resolved)
    assert faults[0] is scenario.faults[0], "no part of it is drawn"
    later = Scenario(faults=faults[5:])
    assert set(spans(later)) <= set(spans(scenario))

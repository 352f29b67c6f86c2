"""Scenarios that select nodes and links by tags, and draw some of them at random."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from testbed.controller.scenarios.feasibility import check
from testbed.controller.scenarios.targets import deaf_nodes, injection_of, senders_of, touched_nodes
from testbed.controller.scenarios.timeline import occurrences_of
from testbed.errors import DescriptionError
from testbed.spec.fault_models import (
    Churn,
    Crash,
    Down,
    Fault,
    Flap,
    Impair,
    Incast,
    OnLinks,
    OnNodes,
    Partition,
    Pause,
    Traffic,
)
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from testbed.spec.scenario import RandomFaults, Scenario

SECOND = 1_000_000_000
RACKS = resolve(
    Description.star(6, tags={"rack1": ["n1", "n2", "n3"], "rack2": ["n4", "n5"], "server": ["n6"], "slow": ["n5--s1"]})
)
LINKS = [link.name for link in RACKS.links]


def faults_of(*faults: Fault, seed: int = 1, horizon: int = 10) -> Sequence[Fault]:
    check(Scenario(faults=faults), RACKS, "sim")
    return [occurrence.fault for occurrence in occurrences_of(Scenario(faults=faults), RACKS, seed, horizon * SECOND)]


def problems(*faults: Fault) -> str:
    with pytest.raises(DescriptionError) as caught:
        check(Scenario(faults=faults), RACKS, "sim")
    return str(caught.value)


def test_tags_are_valid_in_place_of_nodes_and_links() -> None:
    assert touched_nodes(RACKS, Pause(on=["@rack2", "n1"], at=0, for_="1s")) == ["n1", "n4", "n5"]
    injection = injection_of(Down(on="@slow", at=0), RACKS)
    assert injection is not None
    assert injection.down == (LINKS[4],)
    impaired = injection_of(Impair(on="@rack2", direction="out", loss=1.0, at=0), RACKS)
    assert impaired is not None
    assert impaired.places == ((LINKS[3], "forward"), (LINKS[4], "forward"))
    traffic = Traffic(senders="@rack1", receiver="@server", rate="1mbit", at=0)
    assert senders_of(RACKS, traffic) == ["n1", "n2", "n3"]
    assert touched_nodes(RACKS, traffic) == ["n1", "n2", "n3", "n6"]
    assert senders_of(RACKS, Incast(receiver="@server", rate="1mbit", at=0)) == ["n1", "n2", "n3", "n4", "n5"]


def test_partitions_are_between_tags() -> None:
    deaf = deaf_nodes(Partition(groups=[["@rack1"], ["@rack2", "n6"]], at=0), RACKS)
    assert deaf["n1"] == ("n4", "n5", "n6")
    assert deaf["n6"] == ("n1", "n2", "n3")
    isolated = {
        seed: deaf_nodes(Partition(shape="isolated", node="@rack1", seed=seed, at=0), RACKS) for seed in range(20)
    }
    chosen = {next(name for name, unheard in deaf.items() if len(unheard) == 5) for deaf in isolated.values()}
    assert chosen == {"n1", "n2", "n3"}


def test_pick_draws_some_nodes_of_a_tag_at_each_occurrence_from_the_seed() -> None:
    pauses = Pause(on="@rack1", pick=2, at=0, for_="100ms", every="200ms", to="6s")
    targets = [fault.on for fault in faults_of(pauses) if isinstance(fault, OnNodes)]
    assert len(targets) == 30
    assert set(targets) == {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}
    assert targets == [fault.on for fault in faults_of(pauses) if isinstance(fault, OnNodes)]
    assert targets != [fault.on for fault in faults_of(pauses, seed=2) if isinstance(fault, OnNodes)]
    reseeded = pauses.model_copy(update={"seed": 9})
    assert faults_of(reseeded, seed=1) == faults_of(reseeded, seed=2)
    assert all(
        fault.what == f"pause on {', '.join(fault.on)}" for fault in faults_of(pauses) if isinstance(fault, OnNodes)
    )


def test_a_drawn_link_is_one_of_the_tagged_links_or_all_links_of_a_node() -> None:
    flaps = Flap(on=["@rack2", "@slow"], pick=1, at=0, for_="100ms", every="200ms", to="6s")
    targets = {fault.on for fault in faults_of(flaps) if isinstance(fault, OnLinks)}
    assert targets == {("n4",), ("n5",), (LINKS[4],)}
    drawn_links = {
        fault.on[0]
        for fault in faults_of(Down(on="all", pick=1, at=0, for_="1ms", every="10ms", to="2s"))
        if isinstance(fault, OnLinks)
    }
    assert drawn_links == set(LINKS)


def test_churn_and_random_faults_choose_among_the_tagged_elements() -> None:
    restarts = faults_of(Churn(on="@rack2", mean="100ms", at=0, to="5s"))
    assert {restart.on for restart in restarts if isinstance(restart, OnNodes)} == {("n4",), ("n5",)}
    random_faults = RandomFaults(kinds=["pause", "flap"], rate=10.0, on=["@rack2"], to="5s")
    scenario = Scenario(random=random_faults)
    check(scenario, RACKS, "sim")
    targets = {
        occurrence.fault.on[0]
        for occurrence in occurrences_of(scenario, RACKS, 1, SECOND)
        if isinstance(occurrence.fault, OnNodes | OnLinks)
    }
    assert targets == {"n4", "n5", LINKS[3], LINKS[4]}


def test_a_tag_that_is_invalid_in_its_place_is_reported_before_anything_starts() -> None:
    assert "has the tag 'rakc1'; did you mean '@rack1'" in problems(Pause(on="@rakc1", at=0, for_="1s"))
    assert "no node of cluster star-6 has the tag 'slow': only links have it" in problems(Crash(on="@slow", at=0))
    assert "@rack1 selects 3 nodes (n1, n2, n3): name one of them" in problems(
        Incast(receiver="@rack1", rate="1mbit", at=0)
    )
    assert "fault[1].pick: found 4, expected at most 3" in problems(Crash(on="@rack1", pick=4, at=0))
    assert "@server to itself" in problems(Traffic(senders=["n6"], receiver="@server", rate="1mbit", at=0))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Crash(on="n1", at=0, seed=3), "seed: found 3, expected the key 'pick' as well"),
        (
            Churn(on="n1", mean="1s", at=0, pick=1),
            "pick: found 1, expected no such key: churn draws one node each time",
        ),
    ],
)
def test_incompatible_keys_are_rejected(fault: Fault, message: str) -> None:
    (problem,) = fault.problems()
    assert message in str(problem)


def test_a_scenario_with_tags_survives_writing_and_reading() -> None:
    scenario = Scenario(name="x", faults=[Flap(on="@rack1", pick=1, seed=4, at="1s", for_="1ms")])
    assert Scenario.from_toml(scenario.to_toml()) == scenario

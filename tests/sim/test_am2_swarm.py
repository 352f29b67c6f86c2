"""AM-II under the swarm's cases: fixed seeds in CI, random ones with TESTBED_LONG=1, which prints the first one."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from protocols.am2.states import STATELESS, TABLES
from testbed.controller.conformance.network_faults import SHAPES
from tests.sim import am2_swarm, am2_swarm_cases, am2_walks
from tests.sim.state_watch import coverage, with_rows
from tests.unit.protocols.am2_mutants import MUTANTS
from tests.unit.protocols.mutants import Mutant, find, search_repeatedly

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
CASES = 2_000 if LONG else 40
FIRST_OF_SEARCH = 10_000
"""First seed of the search for mutants, apart from the cases' seeds."""
MIN = 100
"""Minimum number of times that each row of the firmware's state tables is taken by the cases and by random walks: some
rows need a network or a host process that no case has."""
MIN_COUNTER = CASES // 10
"""Minimum value of each counter that no row raises."""
NEVER = {"dropped"}
"""Counters of NICs without acknowledgements, which no case has."""


def run_watched(case: am2_swarm_cases.Case) -> Counter[str]:
    return with_rows(partial(am2_swarm.run, case), TABLES, am2_walks.WATCHING)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(1200)
def test_every_request_of_every_case_is_replied_to_or_returned(record_property: Callable[[str, object], None]) -> None:
    tally = replace(am2_swarm.SWARM, run=run_watched).run_many(range(FIRST, FIRST + CASES), chunk=20)
    failures = [f"{am2_swarm.SWARM.replay(seed)}: {reason}" for seed, reason in tally.failed.items()]
    assert not failures, "\n".join(failures[:10])
    walked = am2_walks.rows(am2_walks.walk())
    rows_taken = {name: count + walked[name] for name, count in coverage(TABLES, STATELESS, tally.rows).items()}
    unclear_counts = {cause: count for cause, count in tally.rows.items() if cause.startswith("case: ")}
    record_property("note", f"swarm of AM-II: {CASES:,} cases from seed {FIRST} on; {unclear_counts}")
    rarest = sorted(rows_taken, key=lambda name: rows_taken[name])
    record_property("note", "swarm of AM-II, rows: " + ", ".join(f"{name} {rows_taken[name]:,}" for name in rarest))
    assert not [
        name for name in rarest if rows_taken[name] < (MIN if name in walked else MIN_COUNTER) and name not in NEVER
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_case_of_am2_is_repeatable(seed: int) -> None:
    case = am2_swarm_cases.draw(seed)
    assert case == am2_swarm_cases.draw(seed)
    assert am2_swarm.run(case) == am2_swarm.run(case)


def test_cases_of_am2_cover_their_features() -> None:
    cases = [am2_swarm_cases.draw(seed) for seed in range(300)]
    assert {case.shape for case in cases} == {*SHAPES, am2_swarm_cases.CROSSBARS}
    assert all(case.endpoints > dict(case.settings)["frames"] for case in cases)
    assert all(len(case.requests) >= am2_swarm_cases.REQUESTS for case in cases)
    assert {request.defect for case in cases for request in case.requests} == {"", *am2_swarm_cases.DEFECTS}
    assert 30 < sum(bool(case.restarts) for case in cases) < 200
    assert any(not case.layout().keeps_order() for case in cases)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS if LONG else MUTANTS[1::2], ids=str)
def test_the_swarm_of_am2_finds_the_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    """Seeds are random in a long run; in CI they are fixed, and only every other mutant is search_repeatedly for."""
    first = FIRST_OF_SEARCH + FIRST
    if LONG:
        record_property("note", f"swarm of AM-II: {search_repeatedly(mutant, am2_swarm.SWARM.trial, first, 1_000)}")
    else:
        result = find(mutant, am2_swarm.SWARM.trial, first, 1_000)
        record_property(
            "note",
            f"swarm of AM-II: {mutant} found within {result.cases} cases, seed {result.seed}: {result.complaint}",
        )


@pytest.mark.requires("interpreted")
def test_a_failing_case_of_am2_is_shrunk() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "any tag")
    seed = find(mutant, am2_swarm.SWARM.trial, FIRST_OF_SEARCH, 100).seed
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        case = am2_swarm_cases.draw(seed)
        smallest = am2_swarm.SWARM.shrink(case, attempts=40)
        assert am2_swarm.SWARM.verdict(smallest)
        assert len(smallest.requests) < len(case.requests) / 2

"""Open-MX under the swarm's cases: fixed seeds in CI, random ones with TESTBED_LONG=1, which prints the first one."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

import testbed
from protocols.openmx.states import CONNECTING, PARTNER, PULL, RETRIED, STATELESS, TABLES
from testbed import Scenario
from testbed.controller.conformance.network_faults import SECOND, SHAPES
from testbed.spec.fault_models import Rule
from tests.sim import openmx_swarm, openmx_swarm_cases
from tests.sim.openmx_state_watch import watch_endpoints, watch_partners, watch_pulls
from tests.sim.state_watch import coverage, label, with_rows
from tests.unit.protocols.mutants import Mutant, find, search_repeatedly
from tests.unit.protocols.openmx_mutants import MUTANTS, STEERING, WRAP

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 200
CASES = 10_000 if LONG else 120
FIRST_OF_SEARCH = FIRST + 50_000
"""First seed of the search for mutants, apart from the cases' seeds."""
MUTANT_TIMEOUT = 5 * SECOND
MIN = 100 if LONG else 2
MIN_RARE = 1 if LONG else 0
"""Minimum number of times that each row of the tables is taken."""
RARE = {
    label(PARTNER, PARTNER.row(CONNECTING, "answer with a used session")),
    label(PULL, PULL.row(RETRIED, "refused")),
    label(PULL, PULL.row(RETRIED, "ended by the library")),
}
"""Rows that a hundred cases do not take: both ends connect at once, or a connection ends while a pull's block is
repeated."""
WATCHING = (watch_endpoints, watch_pulls, watch_partners)


def run_watched(case: openmx_swarm_cases.Case) -> Counter[str]:
    return with_rows(partial(openmx_swarm.run, case), TABLES, WATCHING)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(3600)
def test_every_case_passes_and_the_cases_cover_every_row(record_property: Callable[[str, object], None]) -> None:
    tally = replace(openmx_swarm.SWARM, run=run_watched).run_many(range(FIRST, FIRST + CASES), chunk=10)
    failures = [f"{openmx_swarm.SWARM.replay(seed)}: {reason}" for seed, reason in tally.failed.items()]
    assert not failures, "\n".join(failures[:10])
    rows_taken = coverage(TABLES, STATELESS, tally.rows)
    expected = {label(table, row) for table in TABLES for row in table.rows}
    rarest = sorted(expected, key=lambda name: rows_taken[name])
    record_property("note", f"swarm of Open-MX: {CASES:,} cases from {FIRST} on")
    record_property("note", "swarm of Open-MX, rows: " + ", ".join(f"{name} {rows_taken[name]:,}" for name in rarest))
    minima = {name: MIN_RARE if name in RARE else MIN for name in expected}
    assert not [f"{name}: {rows_taken[name]}" for name in rarest if rows_taken[name] < minima[name]]


def test_a_case_of_openmx_is_repeatable() -> None:
    assert openmx_swarm_cases.draw(3) == openmx_swarm_cases.draw(3)
    assert openmx_swarm.SWARM.trial(3) == openmx_swarm.SWARM.trial(3)


def test_cases_of_openmx_cover_their_features() -> None:
    cases = [openmx_swarm_cases.draw(seed) for seed in range(200)]
    assert {case.shape for case in cases} == set(SHAPES)
    assert {(case.per_node, case.per_rank) for case in cases} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert {case.queues for case in cases} == {0, 3}
    kinds = {action.kind for case in cases for action in case.actions}
    assert kinds == {*openmx_swarm_cases.SENDS, *openmx_swarm_cases.BREAKS}
    assert 40 < sum(case.is_calm for case in cases) < 120
    assert 30 < sum(bool(case.restarts) for case in cases) < 100
    assert all(len(case.actions) >= openmx_swarm_cases.MIN_BULK_ACTIONS for case in cases)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", [*MUTANTS, WRAP, STEERING], ids=str)
def test_the_swarm_of_openmx_finds_the_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    def trial(seed: int) -> Counter[str]:
        return openmx_swarm.run(openmx_swarm_cases.draw(seed), MUTANT_TIMEOUT)

    search = (search_repeatedly if LONG else find)(mutant, trial, FIRST_OF_SEARCH, 1_000)
    record_property("note", f"swarm of Open-MX: {search}")


@pytest.mark.parametrize("kind", ["CONNECT", "TINY", "SMALL", "MEDIUM", "RNDV", "PULL", "PULL_REPLY", "NOTIFY", "TRUC"])
def test_rules_reproduce_the_fault_injection_of_open_mxs_driver(kind: str) -> None:
    lost = Scenario(faults=(Rule(on="all", at=0, rules=[f"drop openmx.type == {kind} and every(5)"]),))
    result = testbed.run(
        "star-2", "random", protocol="openmx", mode="sim", scenario=lost, seed=2, check=True, timeout=300,
        settings={"messages": 100, "largest": 60_000},
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed
    recovered = ("resent", "pull_nonfirst_block_done_early", "pull_timeout_handler_first_block")
    total = sum(counters[name] for counters in result.counters.values() for name in recovered)
    assert total or kind in ("CONNECT", "TRUC"), "no dropped frame was resent"

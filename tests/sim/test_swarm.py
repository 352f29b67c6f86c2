"""EMP under the swarm's cases: fixed seeds in CI, fresh ones with TESTBED_LONG=1, which prints the first."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from protocols.emp.states import STATELESS, TABLES
from testbed.controller.conformance.message_swarm import Case
from testbed.controller.conformance.network_faults import SECOND, SHAPES
from testbed.controller.conformance.trials import Violation
from tests.sim import swarm, swarm_restarts
from tests.sim.emp_receive_watch import watch_receptions
from tests.sim.emp_state_watch import watch_messages
from tests.sim.peer_state_watch import watch_peers
from tests.sim.state_watch import coverage, with_rows
from tests.unit.protocols.emp_mutants import MUTANTS
from tests.unit.protocols.mutants import Mutant, find, search_repeatedly

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
CASES = 5_000 if LONG else 120
RESTART_CASES = 1_000 if LONG else 60
FIRST_FOR_MUTANTS = FIRST + 5_000
"""First seed of the mutants' searches, beyond the cases' seeds."""
MUTANT_TIMEOUT = 10 * SECOND
"""Virtual time within which a mutant's case must end: shorter than for correct firmware, as waiting for a stall is slow."""
MIN = 100 if LONG else 3
"""Minimum number of times that each row of the firmware's state tables is taken."""
WATCHING = (watch_messages, watch_receptions, watch_peers)


def run_watched(case: Case) -> Counter[str]:
    return with_rows(partial(swarm.run, case), TABLES, WATCHING)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(1200)
def test_every_case_delivers_everything_once_and_in_order(record_property: Callable[[str, object], None]) -> None:
    tally = replace(swarm.SWARM, run=run_watched).run_many(range(FIRST, FIRST + CASES))
    restarts, failed = with_restarts(range(FIRST, FIRST + RESTART_CASES))
    failures = [f"{swarm.SWARM.replay(seed)}: {reason}" for seed, reason in tally.failed.items()] + failed
    assert not failures, "\n".join(failures[:10])
    rows_taken = coverage(TABLES, STATELESS, tally.rows + restarts)
    record_property("note", f"swarm: {CASES:,} cases and {RESTART_CASES:,} with restarts from seed {FIRST} on")
    rarest = sorted(rows_taken, key=lambda name: rows_taken[name])
    record_property("note", "swarm, rows taken: " + ", ".join(f"{name} {rows_taken[name]:,}" for name in rarest))
    assert not [name for name in rarest if rows_taken[name] < MIN]


def with_restarts(seeds: range) -> tuple[Counter[str], list[str]]:
    """Return how often each row was taken, and the failures."""
    rows: Counter[str] = Counter()
    failures = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for seed, rows_of_case in zip(seeds, pool.map(_run_with_restarts, seeds, chunksize=25), strict=True):
            if isinstance(rows_of_case, str):
                failures.append(f"python -m tests.sim.swarm_restarts {seed}: {rows_of_case}")
            else:
                rows.update(rows_of_case)
    return rows, failures


def _run_with_restarts(seed: int) -> Counter[str] | str:
    try:
        return with_rows(partial(swarm_restarts.run, seed), TABLES, WATCHING)
    except Violation as violation:
        return str(violation)


@pytest.mark.parametrize("seed", range(3))
def test_a_case_is_reproducible(seed: int) -> None:
    case = swarm.draw(seed)
    assert case == swarm.draw(seed)
    assert swarm.run(case) == swarm.run(case)


def test_cases_reach_the_intended_coverage() -> None:
    for case in [swarm.draw(seed) for seed in range(200)]:
        assert 2 <= case.nodes <= 8
        assert len(case.messages) >= 100
        assert len({message.size for message in case.messages}) >= 4
    kinds = {swarm.draw(seed).shape for seed in range(200)}
    assert kinds == set(SHAPES)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_swarm_finds_the_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    """The seeds differ from those of the cases, and are fresh in a long run."""
    search = search_repeatedly(
        mutant, lambda seed: swarm.run(swarm.draw(seed), timeout=MUTANT_TIMEOUT), FIRST_FOR_MUTANTS, 1_000
    )
    record_property("note", f"swarm: {search}")


@pytest.mark.requires("interpreted")
def test_a_failing_case_is_shrunk_to_fewer_messages() -> None:
    """The smaller case still fails."""
    mutant = MUTANTS[0]
    seed = find(mutant, swarm.SWARM.trial, 0, 100).seed
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        case = swarm.draw(seed)
        smallest = swarm.SWARM.shrink(case, attempts=60)
        assert swarm.SWARM.verdict(smallest)
        assert len(smallest.messages) < len(case.messages) / 2

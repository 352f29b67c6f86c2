"""VIA under the swarms' cases: fixed seeds in CI, fresh ones with TESTBED_LONG=1, which prints the first."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from protocols.via.states import SEND_QUEUE, STATELESS, TABLES, VI
from testbed.controller.conformance.network_faults import SECOND
from testbed.controller.conformance.trials import Swarm
from tests.sim import via_connection_swarm, via_swarm, via_verbs_swarm
from tests.sim.peer_state_watch import watch_peers
from tests.sim.state_watch import coverage, label, with_rows
from tests.sim.via_state_watch import watch_queues, watch_vis
from tests.unit.protocols.mutants import Mutant, find, search_repeatedly
from tests.unit.protocols.via_mutants import CONNECTION_MUTANTS, MPI_MUTANTS, VERBS_MUTANTS

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
MPI_CASES = 1_000 if LONG else 16
VERBS_CASES = 4_000 if LONG else 50
CONNECTION_CASES = 10_000 if LONG else 50
FIRST_FOR_MUTANTS = FIRST + 5_000
"""First seed of the mutants' searches, beyond the cases' seeds."""
MUTANT_TIMEOUT = 10 * SECOND
MIN = 100 if LONG else 20
"""Minimum number of times that each row of the tables of send queues and VIs is taken. Unit tests cover the NIC's table."""
SELDOM = ("peer restarted", "gave up", "no receive descriptor")
"""Events of VIs that unit tests cover: no case restarts a peer, gives up or lacks a descriptor."""
WATCHING = (watch_vis, watch_queues, watch_peers)


def run_watched(swarm: Swarm[Any], case: Any) -> Counter[str]:
    return with_rows(partial(swarm.run, case), TABLES, WATCHING)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(1200)
def test_every_case_of_mpi_of_vipl_calls_and_of_connections_passes_the_checks(
    record_property: Callable[[str, object], None],
) -> None:
    rows: Counter[str] = Counter()
    failures = []
    for swarm, cases in (
        (via_swarm.SWARM, MPI_CASES),
        (via_verbs_swarm.SWARM, VERBS_CASES),
        (via_connection_swarm.SWARM, CONNECTION_CASES),
    ):
        tally = replace(swarm, run=partial(run_watched, swarm)).run_many(range(FIRST, FIRST + cases), chunk=10)
        failures += [f"{swarm.replay(seed)}: {reason}" for seed, reason in tally.failed.items()]
        rows += tally.rows
    assert not failures, "\n".join(failures[:10])
    rows_taken = coverage(TABLES, STATELESS, rows)
    expected = {label(SEND_QUEUE, row) for row in SEND_QUEUE.rows}
    expected |= {label(VI, row) for row in VI.rows if row.event not in SELDOM}
    rarest = sorted(expected, key=lambda name: rows_taken[name])
    report = (
        f"{MPI_CASES:,} cases of MPI, {VERBS_CASES:,} of calls and {CONNECTION_CASES:,} of connections from {FIRST} on"
    )
    record_property("note", f"swarm of VIA: {report}")
    record_property("note", "swarm of VIA, rows taken: " + ", ".join(f"{name} {rows_taken[name]:,}" for name in rarest))
    assert not [f"{name}: {rows_taken[name]}" for name in rarest if rows_taken[name] < MIN]


@pytest.mark.parametrize(
    "swarm",
    [via_swarm.SWARM, via_verbs_swarm.SWARM, via_connection_swarm.SWARM],
    ids=["mpi", "calls", "connections"],
)
def test_a_case_is_reproducible(swarm: Swarm[Any]) -> None:
    assert swarm.draw(3) == swarm.draw(3)
    assert swarm.trial(3) == swarm.trial(3)


def test_cases_reach_the_intended_coverage() -> None:
    assert {via_swarm.draw(seed).per_node for seed in range(20)} == {1, 2}
    connecting = [via_connection_swarm.draw(seed) for seed in range(50)]
    assert {case.per_node for case in connecting} == {1, 2}
    sessions = [session for case in connecting for session in case.sessions]
    assert {round_.kind for session in sessions for round_ in session.rounds} == set(via_connection_swarm.KINDS)
    rounds = [
        round_ for seed in range(50) for session in via_verbs_swarm.draw(seed).sessions for round_ in session.rounds
    ]
    assert {round_.hostile for round_ in rounds} == {"", *via_verbs_swarm.FORBIDDEN}


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MPI_MUTANTS, ids=str)
def test_the_swarm_of_mpi_finds_the_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    def trial(seed: int) -> Counter[str]:
        return via_swarm.run(via_swarm.draw(seed), timeout=MUTANT_TIMEOUT)

    search = (search_repeatedly if LONG else find)(mutant, trial, FIRST_FOR_MUTANTS, 200)
    record_property("note", f"swarm of VIA: {search}")


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", VERBS_MUTANTS, ids=str)
def test_the_swarm_of_vipl_calls_finds_the_mutant(
    mutant: Mutant, record_property: Callable[[str, object], None]
) -> None:
    def trial(seed: int) -> Counter[str]:
        return via_verbs_swarm.run(via_verbs_swarm.draw(seed), timeout=MUTANT_TIMEOUT)

    search = (search_repeatedly if LONG else find)(mutant, trial, FIRST_FOR_MUTANTS, 200)
    record_property("note", f"swarm of VIA: {search}")


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", CONNECTION_MUTANTS, ids=str)
def test_the_swarm_of_connections_finds_the_mutant(
    mutant: Mutant, record_property: Callable[[str, object], None]
) -> None:
    def trial(seed: int) -> Counter[str]:
        return via_connection_swarm.run(via_connection_swarm.draw(seed), timeout=MUTANT_TIMEOUT)

    search = (search_repeatedly if LONG else find)(mutant, trial, FIRST_FOR_MUTANTS, 200)
    record_property("note", f"swarm of VIA: {search}")

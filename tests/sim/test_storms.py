"""Storms of restarts under programs with repeated messages: the checkers report no false failure.

Seeds are fixed in CI; TESTBED_LONG=1 runs 300 fresh ones and prints the first.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.sim import storms
from tests.sim.storms import PROGRAMS

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
CASES = 300 if LONG else 16  # each program twice over each protocol


@pytest.mark.timeout(3600 if LONG else 300)
def test_random_restarts_cause_no_false_violation(record_property: Callable[[str, object], None]) -> None:
    tally = storms.SWARM.run_many(range(FIRST, FIRST + CASES), chunk=4)
    failures = [f"{storms.SWARM.replay(seed)}: {reason}" for seed, reason in tally.failed.items()]
    assert not failures, "\n".join(failures[:10])
    record_property("note", f"storms: {CASES} cases from seed {FIRST} on; {dict(tally.rows)}")
    assert tally.rows["nothing lost"] > 100 * CASES


def test_storms_reach_the_intended_coverage() -> None:
    cases = [storms.draw(seed) for seed in range(200)]
    assert {(case.protocol, case.program) for case in cases} == {
        (protocol, program) for protocol in ("emp", "am2") for program in PROGRAMS
    }
    kinds = {fault.kind for case in cases for fault in case.faults}
    assert kinds >= {"crash", "restart", "reset", "impair", "flap", "partition", "pause"}
    restarts = sum(any(fault.kind in storms.RESTARTS for fault in case.faults) for case in cases)
    assert restarts > 180
    assert cases == [storms.draw(seed) for seed in range(200)]

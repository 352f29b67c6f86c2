"""The endpoint scheduler: an endpoint that floods the NIC leaves the others their share."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import SystemRandom

import pytest

from tests.unit.protocols import am2_scheduler_floods
from tests.unit.protocols.am2_mutants import SCHEDULER_MUTANTS
from tests.unit.protocols.mutants import Mutant, search_repeatedly

FIRST_SEED = SystemRandom().randrange(2**32) if os.environ.get("TESTBED_LONG") else 0


def test_an_endpoint_waits_at_most_for_one_turn_of_each_other_endpoint() -> None:
    assert max(am2_scheduler_floods.run(seed) for seed in range(FIRST_SEED, FIRST_SEED + 100)) > 16


@pytest.mark.parametrize("mutant", SCHEDULER_MUTANTS, ids=str)
def test_random_floods_find(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    record_property(
        "note", f"AM-II's endpoint scheduler: {search_repeatedly(mutant, am2_scheduler_floods.run, FIRST_SEED, 100)}"
    )

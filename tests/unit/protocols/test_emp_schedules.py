"""EMP under random schedules: exactly once, never overtaking, nothing leaked, and every frame accounted for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.protocols import emp_random_schedules
from tests.unit.protocols.emp_dialogue import accounted_frames
from tests.unit.protocols.emp_mutants import CHANGED_UNIT, MUTANTS
from tests.unit.protocols.emp_random_schedules import ChangingUnits
from tests.unit.protocols.list_wires import Wires
from tests.unit.protocols.mutants import Mutant, find, search_repeatedly


def counts(wires: Wires, name: str) -> list[int]:
    return [agent.firmware.counter_values()[name] for agent in wires.agents]


@given(st.integers(0, 2**32 - 1))
def test_every_message_arrives_once_and_in_order_and_nothing_leaks(seed: int) -> None:
    wires = emp_random_schedules.run(seed).wires
    for number in range(len(wires.agents)):
        assert counts(wires, "frames_received")[number] == accounted_frames(wires, number)
    assert sum(counts(wires, "messages_sent")) == sum(counts(wires, "messages_received"))
    assert sum(counts(wires, "headers_admitted")) == sum(counts(wires, "messages_received"))
    assert sum(counts(wires, "frames_sent")) == sum(counts(wires, "data_stored"))
    assert sum(counts(wires, "acknowledgements_sent")) == sum(counts(wires, "acknowledgements_received"))
    for name in ("wrong_acknowledgements", "given_up", "abandoned", "restarts", "held_full", "stale", "invalid"):
        assert sum(counts(wires, name)) == 0, name


def test_hosts_change_the_frames_of_a_collection_while_messages_are_in_flight() -> None:
    schedules = [emp_random_schedules.run(seed) for seed in range(20)]
    assert sum(case.changes for case in schedules if isinstance(case, ChangingUnits)) >= 100


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_repeatable(seed: int) -> None:
    assert emp_random_schedules.run(seed).digest.digest() == emp_random_schedules.run(seed).digest.digest()


def test_a_seed_is_repeatable_in_another_process() -> None:
    """A schedule depends on no hash order and no memory address."""
    digests = {
        subprocess.run(
            [sys.executable, "-m", emp_random_schedules.__name__, "11"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {emp_random_schedules.run(11).digest.hexdigest()}


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("mutant", [*MUTANTS, CHANGED_UNIT], ids=str)
def test_the_schedules_find(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    """Seeds are fresh in a long run. A case finds each mistake with a probability above 0.1 (measured: 22 to 95 %)."""
    seed = SystemRandom().randrange(2**32) if os.environ.get("TESTBED_LONG") else 0
    record_property("note", f"EMP between lists: {search_repeatedly(mutant, emp_random_schedules.run, seed, 400)}")


def test_the_schedules_find_nothing_without_a_mutant() -> None:
    no_mutant = Mutant("no mistake", "nothing is wrong", lambda patch: None)  # noqa: ARG005
    with pytest.raises(AssertionError, match="do not find that nothing is wrong"):
        find(no_mutant, emp_random_schedules.run, 0, 20)

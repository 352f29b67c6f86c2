"""Adaptive spinning: the number of unsuccessful spins, and a driver that spins before it sleeps."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.runtime.nodes.patience import MAX_SLEEPS, Patience
from tests.unit.runtime.driver_machine import Machine

SPIN = Patience.SPIN


def spins(patience: Patience, waits: Sequence[bool]) -> list[bool]:
    """Return whether each wait starts with a spin. waits: whether a frame arrives during the spin."""
    spin_waits = []
    for arrives_soon in waits:
        starts_with_spin = patience.budget() > 0
        spin_waits.append(starts_with_spin)
        if not (starts_with_spin and arrives_soon):
            patience.spin_failed()
    return spin_waits


def test_while_frames_arrive_soon_every_wait_starts_with_a_spin() -> None:
    assert all(spins(Patience(SPIN), [True] * 1_000))


def test_after_each_unsuccessful_spin_twice_as_many_waits_have_no_spin() -> None:
    spin_waits = spins(Patience(SPIN), [False] * 100)
    assert [number for number, has_spin in enumerate(spin_waits) if has_spin] == [0, 2, 6, 14, 30, 62]


def test_after_one_successful_spin_every_wait_starts_with_a_spin_again() -> None:
    patience = Patience(SPIN)
    spins(patience, [False] * 1_000)
    spin_waits = spins(patience, [True] * 1_000)
    first = spin_waits.index(True)
    assert first <= MAX_SLEEPS
    assert all(spin_waits[first:])


@given(st.lists(st.booleans(), max_size=400))
def test_unsuccessful_spins_are_rare_for_any_arrivals(waits: list[bool]) -> None:
    spin_waits = spins(Patience(SPIN), waits)
    failed = sum(has_spin and not arrives_soon for has_spin, arrives_soon in zip(spin_waits, waits, strict=True))
    successful = sum(has_spin and arrives_soon for has_spin, arrives_soon in zip(spin_waits, waits, strict=True))
    # Between two successful spins, the n-th failed one causes 2**n - 1 waits without a spin, up to MAX_SLEEPS.
    longest = math.log2(MAX_SLEEPS + 1) + len(waits) / (MAX_SLEEPS + 1) + 1
    assert failed <= (successful + 1) * longest
    if not successful:
        assert failed <= longest


def test_without_a_budget_there_are_no_spins() -> None:
    assert not any(spins(Patience(0), [True, False] * 100))


def test_with_more_processes_than_processors_there_are_no_spins() -> None:
    processors = len(os.sched_getaffinity(0))
    assert Patience.for_processes(processors).budget() == SPIN
    assert Patience.for_processes(processors + 1).budget() == 0


@pytest.mark.requires("interpreted")
def test_a_driver_whose_frames_arrive_soon_sleeps_only_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * SPIN // 2, SPIN // 2))
    with machine.driver(monkeypatch, patience=Patience(SPIN)) as (driver, _):
        driver.wait(None)
    assert len(machine.idle) == 1
    assert machine.idle[0] >= SPIN


@pytest.mark.requires("interpreted")
def test_a_driver_whose_frames_arrive_slowly_mostly_sleeps_without_a_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * 20 * SPIN, 20 * SPIN))
    with machine.driver(monkeypatch, patience=Patience(SPIN)) as (driver, _):
        driver.wait(None)
    assert len(machine.idle) == 100
    spin_waits = [number for number, idle_time in enumerate(machine.idle) if idle_time >= SPIN]
    assert spin_waits == [0, 2, 6, 14, 30, 62]
    assert all(idle_time < SPIN // 10 for number, idle_time in enumerate(machine.idle) if number not in spin_waits)

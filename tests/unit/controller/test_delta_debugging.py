"""Delta debugging finds the necessary causes of an effect, and counts its trials."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.replay.delta_debugging import shrink


@given(st.integers(1, 60), st.data())
def test_exactly_the_necessary_causes_remain(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
    result = shrink(range(count), lambda causes: needed <= set(causes), 10_000)
    assert result.causes == sorted(needed)
    assert result.minimal


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(0, 50))
def test_the_reduced_case_has_the_effect_with_any_number_of_trials(causes: list[int], max_trials: int) -> None:
    trials: list[Sequence[int]] = []

    def has_effect(subset: Sequence[int]) -> bool:
        trials.append(list(subset))
        return sum(subset) % 2 == sum(causes) % 2

    result = shrink(causes, has_effect, max_trials)
    assert sum(result.causes) % 2 == sum(causes) % 2
    assert result.trials == len(trials) <= max_trials


@given(st.sets(st.integers(0, 99), min_size=2, max_size=2))
def test_finding_two_causes_of_a_hundred_takes_few_trials(needed: set[int]) -> None:
    assert shrink(range(100), lambda causes: needed <= set(causes), 1_000).trials <= 120


def test_an_effect_without_a_cause_takes_one_trial() -> None:
    result = shrink(range(100), lambda _: True, 100)
    assert (result.causes, result.trials) == ([], 1)


def test_exhausted_trials_are_reported() -> None:
    result = shrink(range(100), lambda causes: {3, 97} <= set(causes), 5)
    assert not result.minimal
    assert {3, 97} <= set(result.causes)

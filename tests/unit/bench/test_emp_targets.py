"""Targets computed from the rows of the EMP benchmark."""

from collections.abc import Sequence

import pytest

from benchmarks.emp import measurements as m
from benchmarks.emp.targets import targets
from benchmarks.harness.rows import Row


def trips(contender: str, *samples: float, measure: str = m.TRIP) -> Row:
    return Row(m.BLOCKING, contender, measure, 2, "s", samples, {})


def measured_value(rows: Sequence[Row], name_part: str) -> float | None:
    return next(target.measured for target in targets(rows) if name_part in target.name)


def test_waiting_is_named_in_every_comparison_of_blocking_round_trips() -> None:
    rows = [
        trips(m.EMP, 40e-6),
        trips(m.AT_ONCE, 120e-6),
        trips(m.TCP, 80e-6),
        trips(m.TCP_POLLING_FIRST, 10e-6),
    ]
    assert measured_value(rows, "which sleeps at once") == pytest.approx(0.5)
    assert measured_value(rows, "both sleep at once") == pytest.approx(1.5)
    assert measured_value(rows, "both look first") == pytest.approx(4.0)


def test_rounds_are_compared_one_by_one_and_the_upper_end_shows_their_scatter() -> None:
    ours, theirs = (10e-6, 40e-6, 10e-6, 40e-6), (10e-6, 20e-6, 10e-6, 20e-6)
    rows = [trips(name, *ours) for name in (m.EMP, m.AT_ONCE)] + [
        trips(name, *theirs) for name in (m.TCP, m.TCP_POLLING_FIRST)
    ]
    assert measured_value(rows, "which sleeps at once") == pytest.approx(2.0)


def test_polling_is_compared_with_the_cpu_time_that_it_saves() -> None:
    rows = [trips(m.EMP, 90e-6, measure=m.CPU), trips(m.AT_ONCE, 60e-6, measure=m.CPU)]
    assert measured_value(rows, "CPU time") == pytest.approx(1.5)


def test_unmeasured_values_are_missing() -> None:
    assert {target.measured for target in targets([])} == {None}

"""Targets computed from the rows of the EMP benchmark."""

from collections.abc import Sequence

import pytest

from benchmarks.emp import measurements
from benchmarks.emp.targets import targets
from benchmarks.harness.rows import Row


def trips(contender: str, *samples: float, measure: str = measurements.TRIP) -> Row:
    return Row(measurements.BLOCKING, contender, measure, 2, "s", samples, {})


def measured_value(rows: Sequence[Row], name_part: str) -> float | None:
    return next(target.measured for target in targets(rows) if name_part in target.name)


def test_each_target_of_blocking_round_trips_names_how_its_programs_wait() -> None:
    rows = [
        trips(measurements.EMP, 40e-6),
        trips(measurements.AT_ONCE, 120e-6),
        trips(measurements.TCP, 80e-6),
        trips(measurements.TCP_POLLING_FIRST, 10e-6),
    ]
    assert measured_value(rows, "which sleeps at once") == pytest.approx(0.5)
    assert measured_value(rows, "both sleep at once") == pytest.approx(1.5)
    assert measured_value(rows, "both poll first") == pytest.approx(4.0)


def test_ratios_are_by_round_and_the_upper_end_reflects_their_scatter() -> None:
    ours, theirs = (10e-6, 40e-6, 10e-6, 40e-6), (10e-6, 20e-6, 10e-6, 20e-6)
    rows = [trips(name, *ours) for name in (measurements.EMP, measurements.AT_ONCE)] + [
        trips(name, *theirs) for name in (measurements.TCP, measurements.TCP_POLLING_FIRST)
    ]
    assert measured_value(rows, "which sleeps at once") == pytest.approx(2.0)


def test_the_cpu_time_of_polling_is_compared_with_that_of_sleeping() -> None:
    rows = [
        trips(measurements.EMP, 90e-6, measure=measurements.CPU),
        trips(measurements.AT_ONCE, 60e-6, measure=measurements.CPU),
    ]
    assert measured_value(rows, "CPU time") == pytest.approx(1.5)


def test_unmeasured_values_are_missing() -> None:
    assert {target.measured for target in targets([])} == {None}

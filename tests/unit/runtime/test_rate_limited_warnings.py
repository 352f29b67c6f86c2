"""Warnings of a late relay: the first is immediate, later ones are rate-limited."""

from __future__ import annotations

import itertools

from testbed.runtime.relay.lateness import MAX_WARNING_INTERVAL, LatenessWarnings

SECOND = 1_000_000_000
HOUR = 3600


def test_the_first_late_frame_causes_a_warning_at_the_next_check() -> None:
    warnings = LatenessWarnings(0)
    assert warnings.take_due(SECOND, 0, 0) is None
    assert warnings.take_due(2 * SECOND, 3, 1) == (3, 1, 2 * SECOND)
    assert warnings.take_due(3 * SECOND, 3, 1) is None


def test_warnings_of_hours_of_lateness_become_rare_and_count_every_frame() -> None:
    warnings = LatenessWarnings(0)
    warnings_taken = [
        (second, *warning)
        for second in range(HOUR)
        if (warning := warnings.take_due(second * SECOND, 10 * second, second))
    ]
    assert warnings_taken[0][0] == 1
    assert len(warnings_taken) < 10 + HOUR * SECOND / MAX_WARNING_INTERVAL
    gaps = [following[0] - earlier[0] for earlier, following in itertools.pairwise(warnings_taken)]
    assert gaps == sorted(gaps)
    assert gaps[-1] * SECOND == MAX_WARNING_INTERVAL
    last = warnings_taken[-1][0]
    assert [sum(warning[column] for warning in warnings_taken) for column in (1, 2, 3)] == [
        10 * last,
        last,
        last * SECOND,
    ]


def test_after_a_long_time_without_lateness_the_next_warning_is_immediate() -> None:
    warnings = LatenessWarnings(0)
    warnings_taken = [second for second in range(100) if warnings.take_due(second * SECOND, second, 0)]
    quiet_start = 99 + 2 * MAX_WARNING_INTERVAL // SECOND
    assert warnings.take_due(quiet_start * SECOND, 99, 0), "frames since the last warning"
    late_start = quiet_start + 2 * MAX_WARNING_INTERVAL // SECOND
    assert warnings.take_due(late_start * SECOND, 100, 0)
    assert warnings.take_due((late_start + 1) * SECOND, 101, 0)
    assert warnings_taken[:4] == [1, 2, 4, 8]

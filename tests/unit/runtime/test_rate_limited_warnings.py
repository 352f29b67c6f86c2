"""A relay that is behind says so at once, and does not fill the disk with warnings."""

from __future__ import annotations

import itertools

from testbed.runtime.relay.lateness import SELDOM, LatenessWarnings

SECOND = 1_000_000_000
HOUR = 3600


def test_the_first_frame_that_is_late_is_told_at_the_next_look() -> None:
    behind = LatenessWarnings(0)
    assert behind.take_due(SECOND, 0, 0) is None
    assert behind.take_due(2 * SECOND, 3, 1) == (3, 1, 2 * SECOND)
    assert behind.take_due(3 * SECOND, 3, 1) is None


def test_who_is_behind_for_hours_says_so_ever_more_seldom_and_leaves_nothing_out() -> None:
    behind = LatenessWarnings(0)
    told = [
        (second, *found) for second in range(HOUR) if (found := behind.take_due(second * SECOND, 10 * second, second))
    ]
    assert told[0][0] == 1
    assert len(told) < 10 + HOUR * SECOND / SELDOM
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(told)]
    assert gaps == sorted(gaps)
    assert gaps[-1] * SECOND == SELDOM
    last = told[-1][0]
    assert [sum(one[place] for one in told) for place in (1, 2, 3)] == [10 * last, last, last * SECOND]


def test_who_was_on_time_for_long_enough_says_it_at_once_the_next_time() -> None:
    behind = LatenessWarnings(0)
    told = [second for second in range(100) if behind.take_due(second * SECOND, second, 0)]
    quiet = 99 + 2 * SELDOM // SECOND
    assert behind.take_due(quiet * SECOND, 99, 0), "what was left of the last time"
    later = quiet + 2 * SELDOM // SECOND
    assert behind.take_due(later * SECOND, 100, 0)
    assert behind.take_due((later + 1) * SECOND, 101, 0)
    assert told[:4] == [1, 2, 4, 8]

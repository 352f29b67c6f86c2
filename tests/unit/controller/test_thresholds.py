"""Thresholds of verdicts, and the grades that result from them."""

from __future__ import annotations

import pytest

from testbed.controller.verdict.thresholds import LIMITS, TABLE, Limit, Table
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of, worst

MILLISECOND = 1_000_000


def finding(grade: Grade, link: str = "l", direction: str = "forward", what: str = "loss") -> Finding:
    return Finding(what, link, direction, 0.0, 0.0, "share", grade)


def test_every_limit_has_a_unit_and_degrades_before_it_invalidates() -> None:
    for name, limit in LIMITS.items():
        assert limit.unit in ("ns", "share", "frames", "bit/s"), name
        assert limit.meaning
        assert 0 <= limit.degraded <= limit.invalid, name
        assert 0 <= limit.relative_degraded <= limit.relative_invalid, name


@pytest.mark.parametrize(
    ("deviation", "grade"),
    [
        (0, Grade.TRUSTED),
        (2 * MILLISECOND, Grade.TRUSTED),
        (2 * MILLISECOND + 1, Grade.DEGRADED),
        (20 * MILLISECOND, Grade.DEGRADED),
        (20 * MILLISECOND + 1, Grade.INVALID),
    ],
)
def test_a_limit_is_kept_up_to_its_value(deviation: int, grade: Grade) -> None:
    assert TABLE.grade("delay p99", deviation) is grade


def test_a_long_delay_may_be_late_by_a_share_of_it() -> None:
    assert TABLE.grade("delay p50", 4 * MILLISECOND, 100 * MILLISECOND) is Grade.TRUSTED
    assert TABLE.grade("delay p50", 6 * MILLISECOND, 100 * MILLISECOND) is Grade.DEGRADED
    assert TABLE.grade("delay p50", 26 * MILLISECOND, 100 * MILLISECOND) is Grade.INVALID


def test_a_slow_table_allows_more_lateness_but_no_loss_and_no_early_frame() -> None:
    table = Table(slow=10)
    assert table.grade("delay p50", 4 * MILLISECOND) is Grade.TRUSTED
    assert table.grade("relay lateness p99", 19 * MILLISECOND) is Grade.TRUSTED
    for name in ("relay lost", "softnet drops", "relay gap", "loss", "duplicate"):
        assert table.grade(name, 1) is Grade.INVALID, name
    assert table.grade("delay min", 2 * MILLISECOND) is Grade.INVALID


def test_any_loss_inside_the_emulator_is_invalid() -> None:
    for name in ("relay lost", "softnet drops", "relay gap"):
        assert TABLE.grade(name, 0) is Grade.TRUSTED
        assert TABLE.grade(name, 1) is Grade.INVALID


def test_requested_approximations_only_degrade() -> None:
    assert TABLE.grade("approximation", 1.0) is Grade.DEGRADED


def test_a_table_with_other_limits_does_not_change_the_original() -> None:
    stricter = TABLE.with_limits("delay p50", degraded=1, invalid=2)
    assert stricter.grade("delay p50", 3) is Grade.INVALID
    assert TABLE.grade("delay p50", 3) is Grade.TRUSTED
    assert stricter.limits["rate"] == TABLE.limits["rate"]


def test_a_limit_of_zero_is_exceeded_by_anything() -> None:
    assert Limit("m", "share", 0.0, 0.0).grade(1e-9) is Grade.INVALID
    assert Limit("m", "share", 0.0, 0.1).grade(1e-9) is Grade.DEGRADED


def test_a_verdict_is_as_bad_as_its_worst_finding() -> None:
    grades = [Grade.TRUSTED, Grade.DEGRADED, Grade.TRUSTED]
    assert verdict_of(map(finding, grades)).grade is Grade.DEGRADED
    assert verdict_of(map(finding, [*grades, Grade.INVALID])).grade is Grade.INVALID


def test_undecided_findings_are_listed_and_do_not_change_the_grade() -> None:
    undecided = finding(Grade.UNDECIDED)
    verdict = verdict_of([undecided, finding(Grade.TRUSTED)])
    assert verdict.grade is Grade.TRUSTED
    assert verdict.undecided == (undecided,)
    assert worst([undecided, finding(Grade.DEGRADED)]) is Grade.DEGRADED


def test_a_verdict_lists_the_findings_of_one_direction() -> None:
    machine = finding(Grade.TRUSTED, "", "", "steal")
    backward = finding(Grade.TRUSTED, "l", "backward")
    verdict = Verdict(Grade.TRUSTED, (machine, backward, finding(Grade.TRUSTED)))
    assert verdict.of("l", "backward") == [backward]
    assert verdict.of("") == [machine]
    assert len(verdict.of("l", what="loss")) == 2


def test_a_finding_prints_its_time_in_the_largest_unit_that_fits() -> None:
    late = Finding("relay lateness p99", "n1--s1", "forward", 0.0, 32_857_800.0, "ns", Grade.INVALID, "on 2 cores")
    assert str(late) == "relay lateness p99 on n1--s1 forward: 32.86 ms (on 2 cores)"


def test_a_share_is_a_percentage() -> None:
    assert str(Finding("relay waiting", "", "", None, 0.464844, "share", Grade.DEGRADED)) == "relay waiting: 46.48%"

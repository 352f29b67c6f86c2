"""Probe results against expectations: each situation and its grade."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from testbed.controller.probing.expectations import expect
from testbed.controller.probing.probe_findings import Subject, judge, judge_down, rate_of_queued
from testbed.controller.probing.probe_plan import plan_for
from testbed.controller.probing.probes import ProbeResult, TrainResult, delay_of
from testbed.controller.verdict.thresholds import TABLE
from testbed.controller.verdict.verdicts import Finding, Grade
from testbed.spec.layout import Impairment

MILLISECOND = 1_000_000
DELAYED = Impairment(delay=10 * MILLISECOND)
DELAYS = tuple(10 * MILLISECOND + 20_000 + index for index in range(2_000))
CLEAN = ProbeResult(2_000, 2_000, DELAYS, 0, 0, 0, 0, 0, 0, 0, 2.0)


def subject(impairment: Impairment, **settings: object) -> Subject:
    expectation = expect(impairment, {})
    return replace(
        Subject("l", "forward", expectation, plan_for(impairment, expectation, 2, 1500)),
        **settings,  # type: ignore[arg-type]
    )


def findings_of(impairment: Impairment, result: ProbeResult, **settings: object) -> dict[str, Finding]:
    return {finding.what: finding for finding in judge(subject(impairment, **settings), result, TABLE)}


def grades(findings: dict[str, Finding]) -> set[Grade]:
    return {finding.grade for finding in findings.values()}


def test_a_direction_that_behaves_as_configured_is_trusted() -> None:
    findings = findings_of(DELAYED, CLEAN)
    assert grades(findings) == {Grade.TRUSTED}
    assert findings["delay p50"].asked == 10 * MILLISECOND
    assert findings["delay p50"].measured == DELAYS[999]
    assert set(findings) == {"delay min", "delay p50", "delay p99", "jitter", "loss", "duplicate", "order"}


def shifted_result(offset: int) -> ProbeResult:
    return replace(CLEAN, delays=tuple(delay + offset for delay in DELAYS))


def test_a_wrong_delay_is_degraded_then_invalid_late_and_early() -> None:
    assert findings_of(DELAYED, shifted_result(MILLISECOND))["delay p50"].grade is Grade.DEGRADED
    assert findings_of(DELAYED, shifted_result(6 * MILLISECOND))["delay p50"].grade is Grade.INVALID
    findings = findings_of(DELAYED, shifted_result(-6 * MILLISECOND))
    assert findings["delay p50"].grade is Grade.INVALID
    assert findings["delay min"].grade is Grade.INVALID
    assert "early" in findings["delay min"].reason


def test_a_late_tail_degrades_only_the_99th_percentile() -> None:
    delays = (*DELAYS[:1_900], *(delay + 8 * MILLISECOND for delay in DELAYS[1_900:]))
    findings = findings_of(DELAYED, replace(CLEAN, delays=delays))
    assert findings["delay p99"].grade is Grade.DEGRADED
    assert findings["delay p50"].grade is Grade.TRUSTED


def test_too_few_timed_probes_leave_delays_undecided() -> None:
    findings = findings_of(DELAYED, replace(CLEAN, delays=DELAYS[:50]))
    assert findings["delay p50"].grade is Grade.TRUSTED
    assert findings["delay p99"].grade is Grade.UNDECIDED
    findings = findings_of(DELAYED, replace(CLEAN, delays=()))
    assert findings["delay p50"].grade is Grade.UNDECIDED
    assert findings["delay p50"].measured is None


def test_a_single_unconfigured_loss_makes_a_direction_invalid() -> None:
    findings = findings_of(DELAYED, replace(CLEAN, arrived=1_999))
    assert findings["loss"].grade is Grade.INVALID
    assert findings["loss"].interval is not None


LOSSY = Impairment(loss=0.05)


def result_with_loss(sent: int, arrived: int) -> ProbeResult:
    return replace(CLEAN, sent=sent, arrived=arrived, delays=tuple(range(1_000, 3_000)))


def test_a_configured_loss_within_its_interval_is_trusted_if_enough_was_sent() -> None:
    assert findings_of(LOSSY, result_with_loss(30_000, 28_530))["loss"].grade is Grade.TRUSTED
    finding = findings_of(LOSSY, result_with_loss(3_000, 2_850))["loss"]
    assert finding.grade is Grade.UNDECIDED
    assert "20% needs" in finding.reason


def test_a_deviating_loss_invalidates_even_with_few_probes() -> None:
    for arrived in (2_400, 3_000):
        assert findings_of(LOSSY, result_with_loss(3_000, arrived))["loss"].grade is Grade.INVALID
    assert findings_of(Impairment(loss=1.0), result_with_loss(3_000, 1))["loss"].grade is Grade.INVALID
    assert findings_of(Impairment(loss=1.0), result_with_loss(3_000, 0))["loss"].grade is Grade.TRUSTED


def test_a_loss_with_another_explanation_is_undecided() -> None:
    result = result_with_loss(3_000, 2_400)
    for explanation in ({"rules_active": True}, {"overflow_count": 5}):
        assert findings_of(LOSSY, result, **explanation)["loss"].grade is Grade.UNDECIDED
    assert findings_of(LOSSY, replace(result, overrun=1))["loss"].grade is Grade.UNDECIDED
    approximate = findings_of(LOSSY, result, approximations="duplicate with loss")["loss"]
    assert approximate.grade is Grade.DEGRADED
    assert "approximate" in approximate.reason


def test_unconfigured_copies_flips_and_reordering_are_found() -> None:
    assert findings_of(DELAYED, replace(CLEAN, duplicates=1))["duplicate"].grade is Grade.INVALID
    assert findings_of(DELAYED, replace(CLEAN, corrupted=1))["corrupt"].grade is Grade.INVALID
    assert findings_of(DELAYED, replace(CLEAN, overtaken=1))["order"].grade is Grade.DEGRADED
    assert findings_of(DELAYED, replace(CLEAN, overtaken=50))["order"].grade is Grade.INVALID


def test_configured_copies_flips_and_skips_are_trusted() -> None:
    impairment = replace(DELAYED, duplicate=0.1, corrupt=0.1, reorder=0.1)
    result = replace(
        CLEAN, sent=20_000, arrived=20_000, duplicates=2_010, corrupted=1_985, skipped=2_040, overtaken=1_500
    )
    findings = findings_of(impairment, result)
    assert {findings[key].grade for key in ("duplicate", "corrupt", "reorder")} == {Grade.TRUSTED}
    assert "order" not in findings
    assert findings_of(impairment, replace(result, skipped=0))["reorder"].grade is Grade.INVALID


def test_a_late_frame_that_skipped_the_delay_is_not_counted_as_delayed_too_little() -> None:
    reordered = replace(DELAYED, reorder=0.1)
    stalled_delays = tuple(delay + (6 * MILLISECOND if index < 40 else 0) for index, delay in enumerate(DELAYS))
    for early_count, other_delays, grade in (
        (3, DELAYS, Grade.UNDECIDED),
        (8, DELAYS, Grade.INVALID),
        (8, stalled_delays, Grade.UNDECIDED),  # an equal share of the others was equally late
        (60, stalled_delays, Grade.INVALID),
    ):
        delays = tuple(sorted((*[7 * MILLISECOND] * early_count, *other_delays)))
        finding = findings_of(reordered, replace(CLEAN, delays=delays, skipped=222, overtaken=200))["delay min"]
        assert finding.grade is grade
        assert ("may have skipped" in finding.reason) is (grade is Grade.UNDECIDED)
    assert findings_of(DELAYED, replace(CLEAN, delays=(7 * MILLISECOND, *DELAYS)))["delay min"].grade is Grade.INVALID


JITTERY = Impairment(delay=50 * MILLISECOND, jitter=10 * MILLISECOND, distribution="uniform")


def result_with_delays(low: int, high: int) -> ProbeResult:
    rng = random.Random(1)
    return replace(CLEAN, delays=tuple(sorted(rng.randrange(low, high) for _ in range(3_000))))


def test_configured_jitter_is_trusted_and_missing_or_larger_jitter_is_invalid() -> None:
    as_configured = findings_of(JITTERY, result_with_delays(40 * MILLISECOND, 60 * MILLISECOND))
    assert grades(as_configured) == {Grade.TRUSTED}
    missing = findings_of(JITTERY, result_with_delays(50 * MILLISECOND, 50 * MILLISECOND + 100_000))
    assert missing["jitter"].grade is Grade.INVALID
    assert missing["jitter distribution"].grade is Grade.INVALID
    wide = findings_of(JITTERY, result_with_delays(20 * MILLISECOND, 80 * MILLISECOND))
    assert wide["jitter"].grade is Grade.INVALID


def test_a_small_jitter_that_is_missing_is_found() -> None:
    small_jitter = replace(JITTERY, jitter=300_000)
    without_jitter = result_with_delays(50 * MILLISECOND, 50 * MILLISECOND + 1_000)
    assert {findings_of(small_jitter, without_jitter)[key].grade for key in ("jitter", "jitter distribution")} <= {
        Grade.DEGRADED,
        Grade.INVALID,
    }


def test_unconfigured_jitter_is_found() -> None:
    findings = findings_of(DELAYED, result_with_delays(10 * MILLISECOND, 30 * MILLISECOND))
    assert findings["jitter"].grade is Grade.INVALID


def test_interfering_frames_leave_delays_undecided() -> None:
    result = replace(result_with_delays(40 * MILLISECOND, 60 * MILLISECOND), other_frames=1_000)
    assert findings_of(JITTERY, result)["delay p50"].grade is Grade.UNDECIDED
    shaped = Impairment(rate=1_000_000)
    assert findings_of(shaped, replace(CLEAN, other_bytes=100_000))["delay p50"].grade is Grade.UNDECIDED


def test_active_rules_excuse_a_deviation_and_do_not_change_a_trusted_finding() -> None:
    assert grades(findings_of(DELAYED, CLEAN, rules_active=True)) == {Grade.TRUSTED}
    assert (
        findings_of(DELAYED, shifted_result(6 * MILLISECOND), rules_active=True)["delay p50"].grade is Grade.UNDECIDED
    )


# Rate

SHAPED = Impairment(rate=10_000_000)
SHAPED_DELAYS = tuple(48_000 + index for index in range(2_000))  # 60 bytes at 10 Mbit/s


def train(rate: float, offered: float = 1.3e7, pause: int = 0) -> ProbeResult:
    """Send a train through a link of a rate, bit/s. pause: of the sender in the middle, ns."""
    plan = subject(SHAPED).plan.train
    assert plan is not None
    frames = []
    free_at = 0
    for index in range(plan.count):
        sent_at = int(index * plan.bits * 1e9 / offered) + (pause if index > plan.count // 2 else 0)
        free_at = int(max(free_at, sent_at) + plan.bits * 1e9 / rate)
        frames.append((sent_at, free_at))
    return replace(CLEAN, delays=SHAPED_DELAYS, train=TrainResult(offered, tuple(frames), 0, 0))


@pytest.mark.parametrize(
    ("rate", "grade"),
    [
        (1e7, Grade.TRUSTED),
        (0.9e7, Grade.DEGRADED),
        (0.7e7, Grade.INVALID),
        (1.1e7, Grade.DEGRADED),
        (1e9, Grade.INVALID),
    ],
)
def test_the_rate_is_measured(rate: float, grade: Grade) -> None:
    finding = findings_of(SHAPED, train(rate))["rate"]
    assert finding.grade is grade
    assert finding.measured == pytest.approx(min(rate, 1.3e7), rel=0.02)


def test_a_pause_of_the_sender_does_not_change_the_rate() -> None:
    finding = findings_of(SHAPED, train(1e7, pause=200 * MILLISECOND))["rate"]
    assert finding.measured == pytest.approx(1e7, rel=0.02)


def test_a_train_below_the_rate_leaves_it_undecided() -> None:
    finding = findings_of(SHAPED, train(1e7, offered=0.9e7))["rate"]
    assert finding.grade is Grade.UNDECIDED
    assert "this machine cannot send faster" in finding.reason


def test_a_train_with_other_traffic_or_lost_records_leaves_the_rate_undecided() -> None:
    measured = train(1e7)
    assert measured.train is not None
    for result in (
        replace(measured.train, other_bytes=10**6),
        replace(measured.train, overrun=1),
        replace(measured.train, times=()),
    ):
        assert findings_of(SHAPED, replace(measured, train=result))["rate"].grade is Grade.UNDECIDED


def test_a_train_that_was_not_sent_leaves_the_rate_undecided() -> None:
    finding = findings_of(SHAPED, replace(CLEAN, delays=SHAPED_DELAYS))["rate"]
    assert finding.grade is Grade.UNDECIDED
    assert "alone" in finding.reason


def test_a_rate_is_measured_only_from_queued_frames() -> None:
    assert rate_of_queued([(index * 10, index * 10 + 5) for index in range(500)], 8, 100) is None
    queued = [(index * 10, index * 20 + 200) for index in range(500)]
    assert rate_of_queued(queued, 8, 100) == pytest.approx(8e9 / 20)


def test_no_frame_passes_a_link_that_is_down() -> None:
    result = replace(CLEAN, arrived=0, delays=())
    (finding,) = judge_down(subject(Impairment()), result, TABLE)
    assert finding.grade is Grade.TRUSTED
    (finding,) = judge_down(subject(Impairment()), replace(result, arrived=1), TABLE)
    assert finding.grade is Grade.INVALID


def test_a_probe_that_arrives_before_its_departure_by_the_wall_clock_has_no_delay() -> None:
    """Otherwise it would count as reordered on a link without delay."""
    assert delay_of(1_000, 998) == 0
    assert delay_of(1_000, 3_500) == 2_500

"""Findings from the probes of one direction, compared with the expectation by the table of thresholds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.controller.probing.expectations import Chance, Expectation
from testbed.controller.probing.probe_plan import ProbePlan
from testbed.controller.probing.probes import ProbeResult
from testbed.controller.verdict import statistics
from testbed.controller.verdict.thresholds import Table
from testbed.controller.verdict.verdicts import Finding, Grade

_MIN_SAMPLES: Final = 20  # for a median
_MIN_SAMPLES_P99: Final = 100
_MAX_CROSS_TRAFFIC: Final = 0.02  # as a share of the probes or of a train
_MAX_CROSS_LOAD: Final = 0.05  # as a share of the rate; above it, probes wait behind other frames
# Waiting time above which a frame was queued, beyond the delay of an isolated frame:
_QUEUED_TIME: Final = 1_000_000  # ns, or half the queue's length if that is shorter
_QUEUED_FRAME_TIMES: Final = 2  # frame times; the longer time counts
_MAX_SKIPPED_LATE: Final = 3  # frames that may have skipped the delay and then been late
_RULES_ACTIVE: Final = "fault rules decided fates of frames during the measurement, perhaps of these probes"


@dataclass(frozen=True, slots=True)
class Subject:
    """One probed direction with its expectation and its plan. approximations: features that the datapath implements only
    approximately, as requested; empty if it is exact. rules_active: whether fault rules decided fates of frames during the
    measurement. overflow_count: number of frames that the queue dropped during the measurement."""

    link: str
    direction: str
    expectation: Expectation
    plan: ProbePlan
    approximations: str = ""
    rules_active: bool = False
    overflow_count: int = 0


def judge(subject: Subject, result: ProbeResult, table: Table) -> list[Finding]:
    """Judge the probes of one direction."""
    return [
        *_delay_findings(subject, result, table),
        *_jitter_findings(subject, result, table),
        *_share_findings(subject, result, table),
        *_rate_findings(subject, result, table),
    ]


def judge_down(subject: Subject, result: ProbeResult, table: Table) -> list[Finding]:
    """Judge the probes of a link that is down: none may arrive."""
    grade = table.grade("down", result.arrived)
    reason = "the link is down, but frames arrive" if result.arrived else "the link is down: no frame arrives"
    return [_finding(subject, "down", 0, result.arrived, table, grade, reason)]


def _finding(
    subject: Subject,
    name: str,
    expected: float | None,
    measured: float | None,
    table: Table,
    grade: Grade,
    reason: str = "",
    interval: tuple[float, float] | None = None,
) -> Finding:
    unit = table.unit(name)
    return Finding(name, subject.link, subject.direction, expected, measured, unit, grade, reason, interval)


# Delay


def _delay_unpredictable(subject: Subject, result: ProbeResult) -> str:
    """Return the reason why delays cannot be judged, or an empty string."""
    expectation = subject.expectation
    if expectation.delay_unpredictable:
        return expectation.delay_unpredictable
    load = 8 * result.other_bytes / result.seconds if result.seconds else 0.0
    if expectation.rate and load > _MAX_CROSS_LOAD * expectation.rate:
        return f"other traffic uses {load / expectation.rate:.0%} of the rate, and probes are queued behind it"
    if expectation.range and result.other_frames > _MAX_CROSS_TRAFFIC * result.sent:
        return "there is other traffic, and since order is kept, its late frames delay the probes behind them"
    return ""


def _delay_findings(subject: Subject, result: ProbeResult, table: Table) -> list[Finding]:
    expectation, delays = subject.expectation, result.delays
    quantiles = {"delay min": 0.0, "delay p50": 0.5, "delay p99": 0.99}
    unpredictable = _delay_unpredictable(subject, result)
    findings = []
    for name, share in quantiles.items():
        expected = expectation.delay(share)
        min_samples = _MIN_SAMPLES_P99 if name == "delay p99" else _MIN_SAMPLES
        if not delays:
            findings.append(_finding(subject, name, expected, None, table, Grade.UNDECIDED, "no timed probe arrived"))
            continue
        measured = statistics.quantile(delays, share)
        if unpredictable:
            findings.append(_finding(subject, name, expected, measured, table, Grade.UNDECIDED, unpredictable))
            continue
        if len(delays) < min_samples:
            reason = f"{len(delays)} timed probes are too few, at least {min_samples} are needed"
            findings.append(_finding(subject, name, expected, measured, table, Grade.UNDECIDED, reason))
            continue
        error = statistics.rank_error(share, len(delays))
        late = measured - expectation.delay(share + error)
        early = expectation.delay(share - error) - measured
        deviation = {"delay min": early, "delay p50": max(late, early), "delay p99": late}[name]
        grade = table.grade(name, deviation, expected)
        reason = ""
        if grade is not Grade.TRUSTED:
            reason = f"{max(late, early) / 1e6:.3f} ms too {'early' if early > late else 'late'}"
            if subject.rules_active:
                grade, reason = Grade.UNDECIDED, f"{reason}, {_RULES_ACTIVE}"
            elif name == "delay min" and (reordering := _reordering_reason(expectation, result)):
                grade, reason = Grade.UNDECIDED, f"{reason}, {reordering}"
        findings.append(_finding(subject, name, expected, measured, table, grade, reason))
    return findings


def _reordering_reason(expectation: Expectation, result: ProbeResult) -> str:
    """Return the reason why frames with too short a delay may be reordered frames that a busy machine delayed, or an empty
    string. This is likely if only few frames are early, or if a similar share of all frames was late by as much."""
    if not expectation.skip_below:
        return ""
    early = bisect_left(result.delays, expectation.delay(0))
    late_frames = len(result.delays) - bisect_left(result.delays, expectation.delay(1) + expectation.skip_below)
    if early > _MAX_SKIPPED_LATE + 2 * late_frames * result.skipped / len(result.delays):
        return ""
    return f"but {early} of {result.skipped + early} frames may have skipped the delay and then been late"


def _jitter_findings(subject: Subject, result: ProbeResult, table: Table) -> list[Finding]:
    """Judge the interquartile range and the distribution of the delay. Frames may be late by the tolerance of the median
    delay."""
    expectation, delays = subject.expectation, result.delays
    if len(delays) < _MIN_SAMPLES:
        if not expectation.range:
            return []
        return [_finding(subject, "jitter", expectation.spread, None, table, Grade.UNDECIDED, "too few timed probes")]
    measured = statistics.quantile(delays, 0.75) - statistics.quantile(delays, 0.25)
    reason = _delay_unpredictable(subject, result)
    if reason:
        return [_finding(subject, "jitter", expectation.spread, measured, table, Grade.UNDECIDED, reason)]
    error = statistics.rank_error(0.25, len(delays))
    widest = expectation.delay(0.75 + error) - expectation.delay(0.25 - error)
    narrowest = max(0, expectation.delay(0.75 - error) - expectation.delay(0.25 + error))
    outside = max(measured - widest, narrowest - measured, 0)
    grade = table.grade("jitter" if expectation.range else "jitter, none configured", outside, expectation.spread)
    interval = (narrowest, widest) if expectation.range else None
    if subject.rules_active and grade is not Grade.TRUSTED:
        return [
            _finding(subject, "jitter", expectation.spread, measured, table, Grade.UNDECIDED, _RULES_ACTIVE, interval)
        ]
    if not expectation.range:
        spread_reason = "" if grade is Grade.TRUSTED else "the delay varies, though no jitter is configured"
        return [_finding(subject, "jitter", 0, measured, table, grade, spread_reason)]
    bound = statistics.distance_bound(len(delays))
    limit = table.limits["delay p50"]
    late = max(limit.degraded, limit.relative_degraded * expectation.delay(0.5)) * table.slow
    distance = statistics.distance_within(delays, expectation.delays, round(late))
    distribution_grade = table.grade("jitter distribution", distance - bound)
    spread_reason = "" if grade is Grade.TRUSTED else "interquartile range, beyond sampling error"
    distribution_reason = (
        ""
        if distribution_grade is Grade.TRUSTED
        else f"another distribution: distance {distance:.3f}, sampling error at most {bound:.3f}"
    )
    if bound > statistics.MIN_DEVIATION and distribution_grade is Grade.TRUSTED:
        distribution_grade, distribution_reason = (
            Grade.UNDECIDED,
            f"{len(delays)} timed probes cannot detect a distance below {bound:.0%}",
        )
        grade = Grade.UNDECIDED if grade is Grade.TRUSTED else grade
        spread_reason = spread_reason or distribution_reason
    return [
        _finding(subject, "jitter", expectation.spread, measured, table, grade, spread_reason, interval),
        _finding(subject, "jitter distribution", 0, distance, table, distribution_grade, distribution_reason),
    ]


# Shares of frames


def _share_findings(subject: Subject, result: ProbeResult, table: Table) -> list[Finding]:
    expectation = subject.expectation
    lost = result.sent - result.arrived
    findings = [_share_finding(subject, "loss", lost, result.sent, expectation.loss, result, table)]
    for name, hits, chance in (
        ("duplicate", result.duplicates, expectation.duplicate),
        ("corrupt", result.corrupted, expectation.corrupt),
        ("reorder", result.skipped, expectation.reorder),
    ):
        if chance.share or chance.unpredictable or hits or name == "duplicate":
            findings.append(_share_finding(subject, name, hits, result.arrived, chance, result, table))
    if not expectation.reorder.share:
        findings.append(_order_finding(subject, result, table))
    return findings


def _share_finding(
    subject: Subject, name: str, hits: int, samples: int, chance: Chance, result: ProbeResult, table: Table
) -> Finding:
    """Judge a share of frames by its confidence interval."""
    expected = chance.share
    if not samples:
        # No frame arrived: the sample is empty.
        return _finding(subject, name, expected, None, table, Grade.UNDECIDED, f"no probe {_missing_step(name)}")
    measured = hits / samples
    low, high = interval = statistics.share_interval(hits, samples, chance.inflation)

    def finding(grade: Grade, reason: str = "") -> Finding:
        return _finding(subject, name, expected, measured, table, grade, reason, interval)

    if result.overrun:
        return finding(Grade.UNDECIDED, f"{result.overrun} probes were not read in time")
    if chance.unpredictable:
        return finding(Grade.UNDECIDED, chance.unpredictable)
    # Shares of 0 and 1 need no interval.
    outside = abs(measured - expected) if expected in (0.0, 1.0) else max(low - expected, expected - high)
    if outside <= 0:
        if samples < chance.min_probes:
            error = (expected * (1 - expected) * chance.inflation / samples) ** 0.5
            visible = statistics.smallest_visible(expected, error)
            return finding(
                Grade.UNDECIDED,
                f"{samples:,} probes detect deviations of {visible:.0%} or more; 20% needs {chance.min_probes:,} probes",
            )
        return finding(Grade.TRUSTED)
    if subject.rules_active:
        return finding(Grade.UNDECIDED, _RULES_ACTIVE)
    if name == "loss" and subject.overflow_count:
        return finding(Grade.UNDECIDED, f"the queue was full and dropped {subject.overflow_count} frames")
    if subject.approximations:
        return finding(table.grade("approximation", outside), f"approximate, as requested: {subject.approximations}")
    return finding(table.grade(name, outside), f"{hits:,} of {samples:,}: {_deviation(expected, low, high)}")


def _missing_step(name: str) -> str:
    return "could be sent" if name == "loss" else "arrived"


def _deviation(expected: float, low: float, high: float) -> str:
    if expected == 0:
        return "none is configured"
    return f"consistent with {low:.3%} to {high:.3%}, not with {expected:.3%}"


def _order_finding(subject: Subject, result: ProbeResult, table: Table) -> Finding:
    if not result.arrived:
        return _finding(subject, "order", 0, None, table, Grade.UNDECIDED, "no probe arrived")
    share = result.overtaken / result.arrived
    if not share:
        return _finding(subject, "order", 0, 0.0, table, Grade.TRUSTED)
    if subject.rules_active:
        return _finding(subject, "order", 0, share, table, Grade.UNDECIDED, _RULES_ACTIVE)
    reason = f"{result.overtaken:,} of {result.arrived:,} probes were overtaken, though no reordering is configured"
    name = "approximation" if subject.approximations and subject.expectation.range else "order"
    return _finding(subject, "order", 0, share, table, table.grade(name, share), reason)


# Rate


def _rate_findings(subject: Subject, result: ProbeResult, table: Table) -> list[Finding]:
    expectation, plan, train_result = subject.expectation, subject.plan, result.train
    expected = expectation.rate
    if not expected and not plan.no_train:
        return []

    def finding(grade: Grade, reason: str = "", measured: float | None = None) -> list[Finding]:
        return [_finding(subject, "rate", expected or None, measured, table, grade, reason)]

    if plan.train is None:
        return finding(Grade.UNDECIDED, plan.no_train)
    if train_result is None:
        return finding(Grade.UNDECIDED, "too many links with a rate to measure all at once: check this link alone")
    if len(train_result.times) < _MIN_SAMPLES:
        return finding(
            Grade.UNDECIDED,
            f"only {len(train_result.times)} frames of the train arrived, at least {_MIN_SAMPLES} are needed",
        )
    train_bytes = plan.train.count * plan.train.size
    if train_result.overrun:
        return finding(Grade.UNDECIDED, f"{train_result.overrun} frames of the train were not read in time")
    if train_result.other_bytes > _MAX_CROSS_TRAFFIC * train_bytes:
        return finding(
            Grade.UNDECIDED,
            f"other traffic shared the rate: {train_result.other_bytes:,} bytes; train: {train_bytes:,}",
        )
    # Lateness of the datapath must not count as waiting in the queue.
    isolated_delay = max(expectation.delay(1), statistics.quantile(result.delays, 0.99) if result.delays else 0)
    min_wait = min(_QUEUED_TIME, 8 * 10**9 * expectation.queue // expected // 2)
    queued_delay = isolated_delay + max(min_wait, _QUEUED_FRAME_TIMES * plan.train.bits * 10**9 // expected)
    measured = rate_of_queued(train_result.times, plan.train.bits, queued_delay)
    if measured is not None:
        return finding(table.grade("rate", abs(measured - expected), expected), measured=measured)
    # No frame waited: either the rate is not limited, or the train did not reach it.
    times = train_result.times
    delivered_rate = plan.train.bits * len(times) * 1e9 / max(1, times[-1][1] - times[0][1])
    if delivered_rate > plan.train.min_offered * (1 - expectation.loss.share):
        grade = table.grade("rate", delivered_rate - expected, expected)
        return finding(grade, "the train was not limited by the rate", delivered_rate)
    offered = train_result.offered * (1 - expectation.loss.share)
    return finding(
        Grade.UNDECIDED,
        f"the train offered only {offered / 1e6:.4g} Mbit/s, since this machine cannot send faster",
        delivered_rate,
    )


def rate_of_queued(times: Sequence[tuple[int, int]], bits: int, queued_delay: int) -> float | None:
    """Return the rate, in bit/s, of the longest run of queued frames; None if no run is long enough.

    times: departure and arrival of each frame, nanoseconds, in the order of arrival. bits: bits of a frame. queued_delay:
    delay in nanoseconds above which a frame was queued. Queued frames arrive one per frame time, independently of the
    sender. The first quarter of the frames is ignored, since it empties a token bucket.
    """
    best = 0, 0  # frames, nanoseconds
    started: int | None = None
    count = 0
    for departed, arrived in times[len(times) // 4 :]:
        if arrived - departed <= queued_delay:
            started = None
            continue
        if started is None:
            started, count = arrived, 0
        else:
            count += 1
            best = max(best, (count, arrived - started))
    count, elapsed = best
    return count * bits * 1e9 / elapsed if count >= max(_MIN_SAMPLES, len(times) // 8) and elapsed else None

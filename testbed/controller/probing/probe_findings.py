"""Findings from the probes of one direction, compared with the expectation by the table of thresholds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.controller.probing.expectations import Chance, Expectation
from testbed.controller.probing.probe_plan import Plan
from testbed.controller.probing.probes import Probed
from testbed.controller.verdict import statistics
from testbed.controller.verdict.thresholds import Table
from testbed.controller.verdict.verdicts import Finding, Grade

_FEW: Final = 20  # delays below which not even a median is reported
_FEW_FOR_P99: Final = 100
_SHARE_OF_OTHERS: Final = 0.02  # of a train, from which on the rate is shared
_LOAD_OF_OTHERS: Final = 0.05  # of the rate, from which on probes wait behind other frames
_LONG_WAIT: Final = 1_000_000  # ns; half of what the queue holds, if that is shorter
_FEW_HELD_UP: Final = 3  # frames that skip the delay, and are late
_WAITED: Final = 2  # frames' times beyond a lone frame's delay: it has certainly been queued
_RULED: Final = "fault rules have decided frames' fates meanwhile, perhaps these probes'"


@dataclass(frozen=True, slots=True)
class Subject:
    """The direction that is judged. approximate: features that its datapath implements only approximately, as
    requested; empty if it is exact. ruled: fault rules decided frames' fates in the span. overflowed: frames dropped by
    the queue in the span."""

    link: str
    direction: str
    expectation: Expectation
    plan: Plan
    approximate: str = ""
    ruled: bool = False
    overflowed: int = 0


def judge(subject: Subject, probed: Probed, table: Table) -> list[Finding]:
    """Return the findings of one direction."""
    return [
        *_delays(subject, probed, table),
        *_jitter(subject, probed, table),
        *_chances(subject, probed, table),
        *_rate(subject, probed, table),
    ]


def judge_down(subject: Subject, probed: Probed, table: Table) -> list[Finding]:
    """Return the finding of a link that is down: nothing passes."""
    grade = table.grade("down", probed.arrived)
    reason = "the link is down, and frames pass" if probed.arrived else "the link is down: nothing passes"
    return [_finding(subject, "down", 0, probed.arrived, table, grade, reason)]


def _finding(
    subject: Subject,
    what: str,
    asked: float | None,
    measured: float | None,
    table: Table,
    grade: Grade,
    reason: str = "",
    interval: tuple[float, float] | None = None,
) -> Finding:
    unit = table.unit(what)
    return Finding(what, subject.link, subject.direction, asked, measured, unit, grade, reason, interval)


# Delay


def _delay_open(subject: Subject, probed: Probed) -> str:
    """Say why delays cannot be judged, or return an empty string."""
    expectation = subject.expectation
    if expectation.delay_open:
        return expectation.delay_open
    load = 8 * probed.other_bytes / probed.seconds if probed.seconds else 0.0
    if expectation.rate and load > _LOAD_OF_OTHERS * expectation.rate:
        return f"other frames take {load / expectation.rate:.0%} of the rate, and probes wait behind them"
    if expectation.range and probed.others > _SHARE_OF_OTHERS * probed.sent:
        return "other frames pass, and where order is kept a late one holds up the probes behind it"
    return ""


def _delays(subject: Subject, probed: Probed, table: Table) -> list[Finding]:
    expectation, delays = subject.expectation, probed.delays
    asked = {"delay min": 0.0, "delay p50": 0.5, "delay p99": 0.99}
    open_reason = _delay_open(subject, probed)
    findings = []
    for what, share in asked.items():
        wanted = expectation.delay(share)
        few = _FEW_FOR_P99 if what == "delay p99" else _FEW
        if not delays:
            findings.append(_finding(subject, what, wanted, None, table, Grade.UNDECIDED, "no timed probe has arrived"))
            continue
        measured = statistics.quantile(delays, share)
        if open_reason:
            findings.append(_finding(subject, what, wanted, measured, table, Grade.UNDECIDED, open_reason))
            continue
        if len(delays) < few:
            reason = f"{len(delays)} timed probes are too few"
            findings.append(_finding(subject, what, wanted, measured, table, Grade.UNDECIDED, reason))
            continue
        error = statistics.rank_error(share, len(delays))
        late = measured - expectation.delay(share + error)
        early = expectation.delay(share - error) - measured
        deviation = {"delay min": early, "delay p50": max(late, early), "delay p99": late}[what]
        grade = table.grade(what, deviation, wanted)
        reason = ""
        if grade is not Grade.TRUSTED:
            way = "early" if early > late else "late"
            reason = f"{max(late, early) / 1e6:.3f} ms too {way}"
            if subject.ruled:
                grade, reason = Grade.UNDECIDED, f"{reason}, {_RULED}"
            elif what == "delay min" and (held_up := _reordering_reason(expectation, probed)):
                grade, reason = Grade.UNDECIDED, f"{reason}, {held_up}"
        findings.append(_finding(subject, what, wanted, measured, table, grade, reason))
    return findings


def _reordering_reason(expectation: Expectation, probed: Probed) -> str:
    """Say why frames with too short a delay may have skipped it and then been held up by a busy machine, or return an
    empty string. Likely where as large a share of the delayed frames was held up as long, or where they are few."""
    if not expectation.skip_below:
        return ""
    early = bisect_left(probed.delays, expectation.delay(0))
    held_up = len(probed.delays) - bisect_left(probed.delays, expectation.delay(1) + expectation.skip_below)
    if early > _FEW_HELD_UP + 2 * held_up * probed.skipped / len(probed.delays):
        return ""
    return f"but {early} of {probed.skipped + early} frames may have skipped the delay and been held up"


def _jitter(subject: Subject, probed: Probed, table: Table) -> list[Finding]:
    """Judge the interquartile range, and the whole distribution, allowing frames the lateness allowed for the
    median."""
    expectation, delays = subject.expectation, probed.delays
    if len(delays) < _FEW:
        if not expectation.range:
            return []
        return [_finding(subject, "jitter", expectation.spread, None, table, Grade.UNDECIDED, "too few timed probes")]
    measured = statistics.quantile(delays, 0.75) - statistics.quantile(delays, 0.25)
    reason = _delay_open(subject, probed)
    if reason:
        return [_finding(subject, "jitter", expectation.spread, measured, table, Grade.UNDECIDED, reason)]
    error = statistics.rank_error(0.25, len(delays))
    widest = expectation.delay(0.75 + error) - expectation.delay(0.25 - error)
    narrowest = max(0, expectation.delay(0.75 - error) - expectation.delay(0.25 + error))
    outside = max(measured - widest, narrowest - measured, 0)
    grade = table.grade("jitter" if expectation.range else "jitter unasked", outside, expectation.spread)
    interval = (narrowest, widest) if expectation.range else None
    if subject.ruled and grade is not Grade.TRUSTED:
        return [_finding(subject, "jitter", expectation.spread, measured, table, Grade.UNDECIDED, _RULED, interval)]
    if not expectation.range:
        spread_reason = "" if grade is Grade.TRUSTED else "the delay varies, though no jitter is configured"
        return [_finding(subject, "jitter", 0, measured, table, grade, spread_reason)]
    bound = statistics.distance_bound(len(delays))
    limit = table.limits["delay p50"]
    late = max(limit.degraded, limit.relative_degraded * expectation.delay(0.5)) * table.slow
    away = statistics.distance_within(delays, expectation.delays, round(late))
    shape = table.grade("jitter distribution", away - bound)
    spread_reason = "" if grade is Grade.TRUSTED else "between the quartiles; beyond what chance explains"
    shape_reason = (
        "" if shape is Grade.TRUSTED else f"another distribution: {away:.3f} away, chance explains {bound:.3f}"
    )
    if bound > statistics.COARSEST and shape is Grade.TRUSTED:
        shape, shape_reason = Grade.UNDECIDED, f"{len(delays)} timed probes see a distance of {bound:.0%} at best"
        grade = Grade.UNDECIDED if grade is Grade.TRUSTED else grade
        spread_reason = spread_reason or shape_reason
    return [
        _finding(subject, "jitter", expectation.spread, measured, table, grade, spread_reason, interval),
        _finding(subject, "jitter distribution", 0, away, table, shape, shape_reason),
    ]


# Chance


def _chances(subject: Subject, probed: Probed, table: Table) -> list[Finding]:
    expectation = subject.expectation
    lost = probed.sent - probed.arrived
    findings = [_chance(subject, "loss", lost, probed.sent, expectation.loss, probed, table)]
    for what, hits, chance in (
        ("duplicate", probed.twice, expectation.duplicate),
        ("corrupt", probed.corrupted, expectation.corrupt),
        ("reorder", probed.skipped, expectation.reorder),
    ):
        if chance.share or chance.open or hits or what == "duplicate":
            findings.append(_chance(subject, what, hits, probed.arrived, chance, probed, table))
    if not expectation.reorder.share:
        findings.append(_order(subject, probed, table))
    return findings


def _chance(
    subject: Subject, what: str, hits: int, samples: int, chance: Chance, probed: Probed, table: Table
) -> Finding:
    """Judge a share of frames against its interval."""
    asked = chance.share
    if not samples:
        # Without arrivals there is no sample.
        return _finding(subject, what, asked, None, table, Grade.UNDECIDED, f"no probe {_verb(what)}")
    measured = hits / samples
    low, high = interval = statistics.share_interval(hits, samples, chance.inflation)

    def finding(grade: Grade, reason: str = "") -> Finding:
        return _finding(subject, what, asked, measured, table, grade, reason, interval)

    if probed.overrun:
        return finding(Grade.UNDECIDED, f"{probed.overrun} probes were not read in time")
    if chance.open:
        return finding(Grade.UNDECIDED, chance.open)
    # Shares of 0 and 1 need no interval.
    outside = abs(measured - asked) if asked in (0.0, 1.0) else max(low - asked, asked - high)
    if outside <= 0:
        if samples < chance.enough:
            error = (asked * (1 - asked) * chance.inflation / samples) ** 0.5
            visible = statistics.smallest_visible(asked, error)
            return finding(
                Grade.UNDECIDED,
                f"{samples:,} probes see deviations from {visible:.0%} of it on; {chance.enough:,} would see 20%",
            )
        return finding(Grade.TRUSTED)
    if subject.ruled:
        return finding(Grade.UNDECIDED, _RULED)
    if what == "loss" and subject.overflowed:
        return finding(Grade.UNDECIDED, f"the queue dropped {subject.overflowed} frames, as a full one does")
    if subject.approximate:
        return finding(table.grade("approximation", outside), f"approximate, as requested: {subject.approximate}")
    return finding(table.grade(what, outside), f"{hits:,} of {samples:,}: {_deviation(asked, low, high)}")


def _verb(what: str) -> str:
    return "could be sent" if what == "loss" else "arrived"


def _deviation(asked: float, low: float, high: float) -> str:
    if asked == 0:
        return "none is configured"
    return f"reconciled with {low:.3%} to {high:.3%}, not with {asked:.3%}"


def _order(subject: Subject, probed: Probed, table: Table) -> Finding:
    if not probed.arrived:
        return _finding(subject, "order", 0, None, table, Grade.UNDECIDED, "no probe arrived")
    share = probed.overtaken / probed.arrived
    if not share:
        return _finding(subject, "order", 0, 0.0, table, Grade.TRUSTED)
    if subject.ruled:
        return _finding(subject, "order", 0, share, table, Grade.UNDECIDED, _RULED)
    reason = f"{probed.overtaken:,} of {probed.arrived:,} probes were overtaken, and order was to be kept"
    what = "approximation" if subject.approximate and subject.expectation.range else "order"
    return _finding(subject, "order", 0, share, table, table.grade(what, share), reason)


# Rate


def _rate(subject: Subject, probed: Probed, table: Table) -> list[Finding]:
    expectation, plan, result = subject.expectation, subject.plan, probed.train
    asked = expectation.rate
    if not asked and not plan.no_train:
        return []

    def finding(grade: Grade, reason: str = "", measured: float | None = None) -> list[Finding]:
        return [_finding(subject, "rate", asked or None, measured, table, grade, reason)]

    if plan.train is None:
        return finding(Grade.UNDECIDED, plan.no_train)
    if result is None:
        return finding(Grade.UNDECIDED, "there are too many rates to try them all at once: check this link alone")
    if len(result.frames) < _FEW:
        return finding(Grade.UNDECIDED, f"{len(result.frames)} frames of the train have arrived")
    train_bytes = plan.train.count * plan.train.size
    if result.overrun:
        return finding(Grade.UNDECIDED, f"{result.overrun} frames of the train were not read in time")
    if result.others > _SHARE_OF_OTHERS * train_bytes:
        return finding(Grade.UNDECIDED, f"other frames shared the rate: {result.others:,} bytes beside {train_bytes:,}")
    # The datapath's lateness must not count as waiting in the queue.
    lone = max(expectation.delay(1), statistics.quantile(probed.delays, 0.99) if probed.delays else 0)
    waited = min(_LONG_WAIT, 8 * 10**9 * expectation.queue // asked // 2)
    queued = lone + max(waited, _WAITED * plan.train.bits * 10**9 // asked)
    measured = rate_of_queued(result.frames, plan.train.bits, queued)
    if measured is not None:
        return finding(table.grade("rate", abs(measured - asked), asked), measured=measured)
    # No frame waited: either the rate is not limited, or the train did not reach it.
    passed = plan.train.bits * len(result.frames) * 1e9 / max(1, result.frames[-1][1] - result.frames[0][1])
    if passed > plan.train.enough * (1 - expectation.loss.share):
        grade = table.grade("rate", passed - asked, asked)
        return finding(grade, "the train passed without waiting for the rate", passed)
    offered = result.offered * (1 - expectation.loss.share)
    return finding(
        Grade.UNDECIDED, f"the train offered {offered / 1e6:.4g} Mbit/s only: this machine sends no more", passed
    )


def rate_of_queued(frames: Sequence[tuple[int, int]], bits: int, queued: int) -> float | None:
    """Return the rate, bit/s, of frames that had to wait for it; None where no long enough row of them did.

    frames: when each left and came, in nanoseconds, in the order of arrival. bits: of a frame. queued: the delay in
    nanoseconds above which a frame has waited. While frames wait, one arrives per frame time, whatever the sender does:
    the longest row of such frames is measured. The first quarter is ignored: it empties a token bucket.
    """
    best = 0, 0  # frames, nanoseconds
    started: int | None = None
    count = 0
    for departed, arrived in frames[len(frames) // 4 :]:
        if arrived - departed <= queued:
            started = None
            continue
        if started is None:
            started, count = arrived, 0
        else:
            count += 1
            best = max(best, (count, arrived - started))
    count, time = best
    return count * bits * 1e9 / time if count >= max(_FEW, len(frames) // 8) and time else None

"""Statistical assertions: they fail when chance cannot explain the observation, and refuse samples that are too small.

A correct link fails such a test once in a million runs. A sample that could not show a deviation of 20 % is refused,
since a test that cannot fail proves nothing.
"""

from __future__ import annotations

import math
from typing import Final

from testbed.controller.verdict.statistics import COARSEST, LEVEL, LEVEL_Z, enough_for, smallest_visible
from testbed.spec.units import parse_probability

_NEGLIGIBLE: Final = 1e-18  # fraction of a tail's sum below which terms are ignored


class SampleTooSmallError(ValueError):
    """Too few frames to show a deviation of 20 %, in either direction."""


def assert_loss(asked: float | str, lost: int, sent: int) -> None:
    """Fail unless `lost` of `sent` frames are consistent with independent losses of this probability.

    asked: 0..1, or text as in a description: "30%". The exact binomial distribution decides, two-sided, at the level
    1e-6. Raises AssertionError with the observation; SampleTooSmallError where too few were sent to show a deviation of
    20 %; ValueError for impossible numbers. A probability of 0 or 1 leaves nothing to chance, and one frame is enough.
    """
    __tracebackhide__ = True
    share = parse_probability(asked)
    if not 0 <= lost <= sent:
        raise ValueError(f"{lost} of {sent} frames cannot be lost")
    if not sent:
        raise SampleTooSmallError("no frame was sent, so the loss is unknown")
    if not 0 < share < 1:
        expected = sent if share else 0
        if lost != expected:
            raise AssertionError(
                f"{lost:,} of {sent:,} frames were lost, asked for was {share:.4g}: exactly {expected:,}"
            )
        return
    enough = enough_for(share, share * (1 - share))
    if sent < enough:
        raise SampleTooSmallError(
            f"{sent:,} frames cannot show that a loss of {share:.4g} is off by {COARSEST:.0%}: send {enough:,} or more "
            f"({lost:,} were lost)"
        )
    chance = two_sided(lost, sent, share)
    if chance < LEVEL:
        deviation = math.sqrt(share * (1 - share) / sent)
        low, high = (sent * (share - LEVEL_Z * deviation), sent * (share + LEVEL_Z * deviation))
        visible = smallest_visible(share, deviation)
        raise AssertionError(
            f"{lost:,} of {sent:,} frames were lost, {lost / sent:.4g}; asked for was {share:.4g}. Chance gives that in "
            f"{chance:.2g} of all cases (level {LEVEL:g}); expected were {sent * share:,.0f}, about {max(0, low):,.0f} to "
            f"{min(sent, high):,.0f}; this sample sees deviations from {visible:.1%} on"
        )


def two_sided(hits: int, samples: int, share: float) -> float:
    """Probability that independent samples with probability `share` (0 < share < 1) deviate at least so far on that
    side; doubled for the other side, at most 1. Exact but for rounding (relative error below 1e-6)."""
    expected = samples * share
    tail = _tail(hits, samples, share, 1 if hits > expected else -1)
    return min(1.0, 2 * tail)


def _tail(hits: int, samples: int, share: float, step: int) -> float:
    """Sum the binomial distribution from `hits` outwards, where each term is smaller than the one before."""
    term = math.exp(
        math.lgamma(samples + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(samples - hits + 1)
        + hits * math.log(share)
        + (samples - hits) * math.log1p(-share)
    )
    odds = share / (1 - share)
    total, count = 0.0, hits
    while term > total * _NEGLIGIBLE:
        total += term
        if step > 0:
            term *= (samples - count) / (count + 1) * odds
        else:
            term *= count / (samples - count + 1) / odds
        count += step
    return total

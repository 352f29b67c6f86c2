"""Ratio of two samples with a confidence interval, without assumptions about their distributions.

Independent samples: the median of the ratios of every value of the candidate to every value of the baseline, with the
interval that the rank test of Mann, Whitney and Wilcoxon does not reject (Hodges, Lehmann, "Estimates of location based on
rank tests", Ann. Math. Stat. 34, 1963). Pairs, such as two simulations with equal seeds: the median of their ratios, with
the interval of the sign test. Both intervals are exact for small samples and need no random numbers. If a sample is too
small, it has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Final

_MAX_EXACT: Final = 40  # maximum sample size for the exact rank distribution; above it the normal approximation is used
_MAX_SAMPLES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of the candidate's values to those of the baseline. low, high: confidence interval; None if the samples are too
    small for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def excludes_one(self) -> bool:
        """Whether the interval exists and does not contain 1: the difference is significant."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def independent(baseline: Sequence[float], candidate: Sequence[float], risk: float) -> Ratio:
    """Compare independent samples. risk: maximum probability that the interval does not contain the true ratio. Raises
    StatisticsError for an empty sample."""
    ratios = sorted(_ratio(b, a) for a in baseline for b in candidate)
    cut = _rank_cut(len(baseline), len(candidate), risk)
    center = median(ratios)
    return Ratio(center, ratios[cut - 1], ratios[-cut]) if cut else Ratio(center)


def paired(baseline: Sequence[float], candidate: Sequence[float], risk: float) -> Ratio:
    """Compare pairs of exact values. With too few pairs for the risk, the interval contains the ratios of all pairs. Raises
    ValueError for different lengths, and its subclass StatisticsError for empty samples."""
    ratios = sorted(_ratio(b, a) for a, b in zip(baseline, candidate, strict=True))
    cut = max(1, _sign_cut(len(ratios), risk))
    return Ratio(median(ratios), ratios[cut - 1], ratios[-cut])


def to_constant(constant: float, candidate: Sequence[float], risk: float, *, exact: bool) -> Ratio:
    """Compare a sample with a known value. exact: the values are exact, so that a small sample has an interval, too: that of
    all its ratios."""
    ratios = sorted(_ratio(value, constant) for value in candidate)
    cut = _sign_cut(len(ratios), risk)
    if exact:
        cut = max(1, cut)
    return Ratio(median(ratios), ratios[cut - 1], ratios[-cut]) if cut else Ratio(median(ratios))


def min_samples(risk: float) -> int:
    """Return the smallest number of values on each side that shows a difference if all values of one side exceed all of the
    other."""
    return next((count for count in range(1, _MAX_SAMPLES) if _rank_cut(count, count, risk)), _MAX_SAMPLES)


def min_samples_to_constant(risk: float) -> int:
    """Return the smallest number of values that shows a difference from a known value if all exceed it."""
    return next((count for count in range(1, _MAX_SAMPLES) if _sign_cut(count, risk)), _MAX_SAMPLES)


def _ratio(candidate: float, baseline: float) -> float:
    if baseline == candidate:
        return 1.0
    return candidate / baseline if baseline else math.inf


def _rank_cut(first: int, second: int, risk: float) -> int:
    """Return the rank of the interval's bounds, from 1 at both ends of the sorted ratios; 0: too few values. first, second:
    sizes of the samples."""
    if max(first, second) > _MAX_EXACT:
        spread = math.sqrt(first * second * (first + second + 1) / 12)
        return max(0, math.floor(first * second / 2 - NormalDist().inv_cdf(1 - risk / 2) * spread))
    return _cut(rank_counts(first, second), math.comb(first + second, first), risk)


def _sign_cut(pairs: int, risk: float) -> int:
    return _cut([math.comb(pairs, count) for count in range(pairs + 1)], 2**pairs, risk)


def _cut(counts: Sequence[int], total: int, risk: float) -> int:
    """Return the number of the smallest values of a statistic whose probability together is at most half the risk. counts:
    number of cases for each value. total: number of all cases."""
    cumulated = 0
    for index, count in enumerate(counts):
        cumulated += count
        if cumulated > risk / 2 * total:
            return index
    return len(counts)


def rank_counts(first: int, second: int) -> list[int]:
    """Return the number of orders of two samples by the number of inverted pairs: the coefficients of the Gaussian binomial.
    first, second: sizes of the samples."""
    counts = [1] + [0] * (first * second)
    for number in range(1, first + 1):
        for index in range(len(counts) - 1, second + number - 1, -1):
            counts[index] -= counts[index - second - number]
        for index in range(number, len(counts)):
            counts[index] += counts[index - number]
    return counts

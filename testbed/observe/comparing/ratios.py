"""Ratio of two samples with a confidence interval, without assumptions about their distributions.

Independent samples: the median of all ratios of one of theirs to one of ours, with the interval that the rank test of
Mann, Whitney and Wilcoxon does not reject (Hodges, Lehmann, "Estimates of location based on rank tests", Ann. Math.
Stat. 34, 1963). Pairs, such as two simulations with equal seeds: the median of their ratios, with the interval of the
sign test. Both are exact for small samples and use no random numbers. There is no interval if a sample is too small.
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
    """Ratio of theirs to ours. low, high: its confidence interval; None if the samples are too small for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def excludes_one(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def independent(ours: Sequence[float], theirs: Sequence[float], risk: float) -> Ratio:
    """Compare independent samples. risk: probability that the interval does not contain the true ratio. Raises ValueError
    for an empty sample."""
    ratios = sorted(_ratio(b, a) for a in ours for b in theirs)
    cut = _rank_cut(len(ours), len(theirs), risk)
    center = median(ratios)
    return Ratio(center, ratios[cut - 1], ratios[-cut]) if cut else Ratio(center)


def paired(ours: Sequence[float], theirs: Sequence[float], risk: float) -> Ratio:
    """Compare pairs of exact figures. If there are too few pairs for the risk, all of them must agree. Raises ValueError
    for different lengths and for empty samples."""
    ratios = sorted(_ratio(b, a) for a, b in zip(ours, theirs, strict=True))
    cut = max(1, _sign_cut(len(ratios), risk))
    return Ratio(median(ratios), ratios[cut - 1], ratios[-cut])


def to_constant(constant: float, theirs: Sequence[float], risk: float, *, exact: bool) -> Ratio:
    """Compare a sample with a known value. exact: the sample's values are exact, so that few are enough."""
    ratios = sorted(_ratio(value, constant) for value in theirs)
    cut = _sign_cut(len(ratios), risk)
    if exact:
        cut = max(1, cut)
    return Ratio(median(ratios), ratios[cut - 1], ratios[-cut]) if cut else Ratio(median(ratios))


def min_samples(risk: float) -> int:
    """Smallest number of samples on each side that can show a difference if all of one side exceed all of the other."""
    return next((count for count in range(1, _MAX_SAMPLES) if _rank_cut(count, count, risk)), _MAX_SAMPLES)


def min_samples_to_constant(risk: float) -> int:
    """Smallest number of samples that can show a difference from a known value."""
    return next((count for count in range(1, _MAX_SAMPLES) if _sign_cut(count, risk)), _MAX_SAMPLES)


def _ratio(theirs: float, ours: float) -> float:
    if ours == theirs:
        return 1.0
    return theirs / ours if ours else math.inf


def _rank_cut(ours: int, theirs: int, risk: float) -> int:
    """Return the rank of the interval's bounds, from 1 at both ends of the sorted ratios; 0: too few samples."""
    if max(ours, theirs) > _MAX_EXACT:
        spread = math.sqrt(ours * theirs * (ours + theirs + 1) / 12)
        return max(0, math.floor(ours * theirs / 2 - NormalDist().inv_cdf(1 - risk / 2) * spread))
    return _cut(rank_counts(ours, theirs), math.comb(ours + theirs, ours), risk)


def _sign_cut(pairs: int, risk: float) -> int:
    return _cut([math.comb(pairs, count) for count in range(pairs + 1)], 2**pairs, risk)


def _cut(counts: Sequence[int], total: int, risk: float) -> int:
    """Return how many of the smallest values together have at most half the risk."""
    cumulated = 0
    for index, count in enumerate(counts):
        cumulated += count
        if cumulated > risk / 2 * total:
            return index
    return len(counts)


def rank_counts(ours: int, theirs: int) -> list[int]:
    """Return the number of orders of both samples by inverted pairs: the coefficients of the Gaussian binomial."""
    counts = [1] + [0] * (ours * theirs)
    for number in range(1, ours + 1):
        for index in range(len(counts) - 1, theirs + number - 1, -1):
            counts[index] -= counts[index - theirs - number]
        for index in range(number, len(counts)):
            counts[index] += counts[index - number]
    return counts

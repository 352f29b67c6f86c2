"""By which factor one sample is more than another, and which factors the samples leave open; nothing is assumed of how they
are distributed.

Independent samples: the median of all ratios of one of theirs to one of ours, with the interval that the rank test of Mann,
Whitney and Wilcoxon does not reject (Hodges, Lehmann, "Estimates of location based on rank tests", Ann. Math. Stat. 34,
1963). Pairs, such as two simulations under the same seeds: the median of their ratios, with the interval of the sign test.
Both are exact for small samples, draw nothing at random, and say when a sample is too small to exclude anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Final

_EXACT: Final = 40  # samples on either side up to which the distribution of ranks is counted out
_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """value: theirs to ours. low, high: what the samples leave open; None where they are too small to tell."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def excludes_one(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def independent(ours: Sequence[float], theirs: Sequence[float], risk: float) -> Ratio:
    """risk: the probability that the interval misses the factor. ValueError for an empty sample."""
    ratios = sorted(_ratio(b, a) for a in ours for b in theirs)
    cut = _rank_cut(len(ours), len(theirs), risk)
    middle = median(ratios)
    return Ratio(middle, ratios[cut - 1], ratios[-cut]) if cut else Ratio(middle)


def paired(ours: Sequence[float], theirs: Sequence[float], risk: float) -> Ratio:
    """Of figures that are exact: where pairs are too few for the risk, all of them must agree. ValueError for lengths that
    differ, and for empty samples."""
    ratios = sorted(_ratio(b, a) for a, b in zip(ours, theirs, strict=True))
    cut = max(1, _sign_cut(len(ratios), risk))
    return Ratio(median(ratios), ratios[cut - 1], ratios[-cut])


def to_constant(constant: float, theirs: Sequence[float], risk: float, *, exact: bool) -> Ratio:
    """To a value that is known. exact: theirs are, so that few are enough."""
    ratios = sorted(_ratio(one, constant) for one in theirs)
    cut = _sign_cut(len(ratios), risk)
    if exact:
        cut = max(1, cut)
    return Ratio(median(ratios), ratios[cut - 1], ratios[-cut]) if cut else Ratio(median(ratios))


def enough(risk: float) -> int:
    """So many samples on each side exclude something, if all of one side are more than all of the other."""
    return next((count for count in range(1, _MOST) if _rank_cut(count, count, risk)), _MOST)


def enough_of_one(risk: float) -> int:
    """The same against a value that is known."""
    return next((count for count in range(1, _MOST) if _sign_cut(count, risk)), _MOST)


def _ratio(theirs: float, ours: float) -> float:
    if ours == theirs:
        return 1.0
    return theirs / ours if ours else math.inf


def _rank_cut(ours: int, theirs: int, risk: float) -> int:
    """Which of the sorted ratios, counted from 1 at both ends, bound the interval; 0: they are too few."""
    if max(ours, theirs) > _EXACT:
        spread = math.sqrt(ours * theirs * (ours + theirs + 1) / 12)
        return max(0, math.floor(ours * theirs / 2 - NormalDist().inv_cdf(1 - risk / 2) * spread))
    return _cut(rank_counts(ours, theirs), math.comb(ours + theirs, ours), risk)


def _sign_cut(pairs: int, risk: float) -> int:
    return _cut([math.comb(pairs, count) for count in range(pairs + 1)], 2**pairs, risk)


def _cut(counts: Sequence[int], whole: int, risk: float) -> int:
    """How many of the smallest values together have at most half the risk."""
    sofar = 0
    for place, count in enumerate(counts):
        sofar += count
        if sofar > risk / 2 * whole:
            return place
    return len(counts)


def rank_counts(ours: int, theirs: int) -> list[int]:
    """In how many orders of both samples so many pairs are in the wrong order: the Gaussian binomial coefficient's terms."""
    counts = [1] + [0] * (ours * theirs)
    for number in range(1, ours + 1):
        for place in range(len(counts) - 1, theirs + number - 1, -1):
            counts[place] -= counts[place - theirs - number]
        for place in range(number, len(counts)):
            counts[place] += counts[place - number]
    return counts

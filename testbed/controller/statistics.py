"""Intervals at a level of one in a million, and what a sample can see.

A deviation counts beyond 4.892 standard deviations: a sound sample lies there once in a million. A sample is big enough
for an asked value when a deviation of 20 % of it is found in 99 of 100 cases; how small a deviation it sees is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

LEVEL: Final = 1e-6
LEVEL_Z: Final = 4.892
"""Standard deviations of a normal distribution, two-sided, at that level."""

POWER_Z: Final = 2.326
"""The same, one-sided, at 99 of 100."""

COARSEST: Final = 0.20
"""The relative deviation that a sample must be able to see."""


def smallest_visible(asked: float, standard_error: float) -> float:
    """The relative deviation that is found in 99 cases of 100."""
    return (LEVEL_Z + POWER_Z) * standard_error / asked


def enough_for(asked: float, variance: float) -> int:
    """So many independent samples see a deviation of 20 %. variance: of one sample."""
    return math.ceil(((LEVEL_Z + POWER_Z) / (COARSEST * asked)) ** 2 * variance)


def share_interval(hits: int, samples: int, inflation: float = 1.0) -> tuple[float, float]:
    """The shares with which these hits can be reconciled: Wilson's score interval at the level.

    E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927). inflation: by how
    much the variance of the sum exceeds that of independent samples.
    """
    if samples == 0:
        return 0.0, 1.0
    count = samples / inflation
    share = hits / samples
    z2 = LEVEL_Z**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = LEVEL_Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    # At the ends rounding must not exclude what has been seen.
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    high = 1.0 if hits == samples else min(1.0, middle + half)
    return low, high


def burst_inflation(gemodel: tuple[float, ...]) -> float:
    """By how much Gilbert-Elliott's losses vary more than independent ones of the same share; 1 for none.

    The states' correlation falls by 1 - p - r a frame, so that the variance of a long sum has a geometric series more.
    """
    p, r, bad, good = gemodel
    if not 0 < p + r < 2:
        return 1.0
    in_bad = p / (p + r)
    mean = in_bad * bad + (1 - in_bad) * good
    variance = mean * (1 - mean)
    if not variance:
        return 1.0
    kept = 1 - p - r
    covariance = (bad - good) ** 2 * in_bad * (1 - in_bad) * kept / (1 - kept)
    return max(1.0, 1 + 2 * covariance / variance)


def rank_error(share: float, samples: int) -> float:
    """How far from its own share the empirical quantile of a sound sample may lie, in shares."""
    return LEVEL_Z * math.sqrt(share * (1 - share) / samples) if samples else 1.0


def quantile(ordered: Sequence[int], share: float) -> int:
    """Of sorted values: the smallest that at least this share of them does not exceed. ValueError without values."""
    if not ordered:
        raise ValueError("no values have no quantile")
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def distance_bound(samples: int) -> float:
    """How far the empirical distribution of a sound sample may lie from its own: Kolmogorov and Smirnov's bound for large
    samples (Dvoretzky, Kiefer and Wolfowitz with Massart's constant), which holds for small ones, too."""
    return math.sqrt(-math.log(LEVEL / 2) / 2 / samples)


def distance(ordered: Sequence[float], cumulative: Callable[[float], float]) -> float:
    """The greatest distance between the empirical distribution of sorted values and a continuous one."""
    count = len(ordered)
    return max(
        max(abs(cumulative(value) - place / count), abs(cumulative(value) - (place + 1) / count))
        for place, value in enumerate(ordered)
    )


def distance_within(measured: Sequence[int], expected: Sequence[int], late: int) -> float:
    """The greatest distance between two empirical distributions, where values may be up to `late` greater than expected.

    Both sorted. 0: measured lies between the expected one and the same moved by `late`.
    """
    worst = 0.0
    below = moved = 0
    count, of = len(measured), len(expected)
    for place, value in enumerate(measured):
        while below < of and expected[below] <= value:
            below += 1
        while moved < of and expected[moved] + late < value:
            moved += 1
        # More early than any sound sample; or fewer than even late ones would be.
        worst = max(worst, (place + 1) / count - below / of, moved / of - place / count)
    return worst

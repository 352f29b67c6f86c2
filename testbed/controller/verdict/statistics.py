"""Confidence intervals at a level of one in a million, and the deviations that a sample can detect.

A deviation counts beyond 4.892 standard deviations: a sound sample lies there once in a million. A sample is large
enough for a value if it detects a deviation of 20 % in 99 of 100 cases; the smallest deviation that it detects is
reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

LEVEL: Final = 1e-6
LEVEL_Z: Final = 4.892
"""Standard deviations of a normal distribution, two-sided, at that level."""

POWER_Z: Final = 2.326
"""Standard deviations of a normal distribution, one-sided, at 99 of 100."""

COARSEST: Final = 0.20
"""Relative deviation that a sample must be able to detect."""


def smallest_visible(asked: float, standard_error: float) -> float:
    """Return the relative deviation that is detected in 99 cases of 100."""
    return (LEVEL_Z + POWER_Z) * standard_error / asked


def enough_for(asked: float, variance: float) -> int:
    """Return how many independent samples detect a deviation of 20 %. variance: of one sample."""
    return math.ceil(((LEVEL_Z + POWER_Z) / (COARSEST * asked)) ** 2 * variance)


def share_interval(hits: int, samples: int, inflation: float = 1.0) -> tuple[float, float]:
    """Return the shares that these hits are compatible with: Wilson's score interval at LEVEL.

    E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927). inflation:
    ratio of the sum's variance to that of independent samples.
    """
    if samples == 0:
        return 0.0, 1.0
    count = samples / inflation
    share = hits / samples
    z2 = LEVEL_Z**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = LEVEL_Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    # At the ends rounding must not exclude the observed share.
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    high = 1.0 if hits == samples else min(1.0, middle + half)
    return low, high


def burst_inflation(gemodel: tuple[float, ...]) -> float:
    """Return the ratio of the variance of Gilbert-Elliott losses to that of independent ones of equal share; at least
    1.

    The states' correlation falls by 1 - p - r a frame, so the variance of a long sum has an additional geometric
    series.
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
    """Return how far from its own share the empirical quantile of a sound sample may lie, in shares."""
    return LEVEL_Z * math.sqrt(share * (1 - share) / samples) if samples else 1.0


def quantile(ordered: Sequence[int], share: float) -> int:
    """Return the smallest of the sorted values that at least this share of them does not exceed. ValueError without
    values."""
    if not ordered:
        raise ValueError("no values have no quantile")
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def distance_bound(samples: int) -> float:
    """Return how far the empirical distribution of a sound sample may lie from its own: Kolmogorov and Smirnov's bound
    for large samples (Dvoretzky, Kiefer and Wolfowitz with Massart's constant), which holds for small ones, too."""
    return math.sqrt(-math.log(LEVEL / 2) / 2 / samples)


def distance(ordered: Sequence[float], cumulative: Callable[[float], float]) -> float:
    """Return the greatest distance between the empirical distribution of sorted values and a continuous one."""
    count = len(ordered)
    return max(
        max(abs(cumulative(value) - place / count), abs(cumulative(value) - (place + 1) / count))
        for place, value in enumerate(ordered)
    )


def distance_within(measured: Sequence[int], expected: Sequence[int], late: int) -> float:
    """Return the greatest distance between two empirical distributions, where values may be up to `late` above the
    expected.

    Both sorted. 0: measured lies between the expected distribution and the same one shifted by `late`.
    """
    worst = 0.0
    below = moved = 0
    count, of = len(measured), len(expected)
    for place, value in enumerate(measured):
        while below < of and expected[below] <= value:
            below += 1
        while moved < of and expected[moved] + late < value:
            moved += 1
        # More early values than in a sound sample; or fewer than late ones would leave.
        worst = max(worst, (place + 1) / count - below / of, moved / of - place / count)
    return worst

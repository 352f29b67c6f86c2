"""Confidence intervals at a level of one in a million, and the deviations that a sample can detect.

Intervals of shares of independent samples are exact. Elsewhere a deviation is significant beyond 4.892 standard deviations,
which a correct sample exceeds once in a million. A sample is large enough if it detects a relative deviation of 20 % in 99
of 100 cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

LEVEL: Final = 1e-6
"""Probability at which a correct sample lies outside an interval."""

LEVEL_Z: Final = 4.892
"""Standard deviations of a normal distribution, two-sided, at LEVEL."""

POWER_Z: Final = 2.326
"""Standard deviations of a normal distribution, one-sided, at 99 of 100."""

_PRECISION: Final = 1e-12
"""Relative precision of a distribution function."""

MIN_DEVIATION: Final = 0.20
"""Relative deviation that a sample must detect."""


def smallest_visible(expected: float, standard_error: float) -> float:
    """Return the smallest relative deviation that is detected in 99 of 100 cases."""
    return (LEVEL_Z + POWER_Z) * standard_error / expected


def required_samples(expected: float, variance: float) -> int:
    """Return the number of independent samples that detect a deviation of 20 %. variance: variance of one sample."""
    return math.ceil(((LEVEL_Z + POWER_Z) / (MIN_DEVIATION * expected)) ** 2 * variance)


def share_interval(hits: int, samples: int, inflation: float = 1.0) -> tuple[float, float]:
    """Return the interval of shares that are compatible with these hits at LEVEL, exact for independent samples.

    C. J. Clopper and E. S. Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial",
    Biometrika 26 (1934), by the beta distribution. A normal approximation is wrong in its tails: of 75 frames, 10 are lost
    at a share of 3 % in 8 of 100,000 cases, and not in one of a million. inflation: ratio of the sum's variance to that of
    independent samples.
    """
    if samples == 0:
        return 0.0, 1.0
    counted, others = hits / inflation, (samples - hits) / inflation
    low = 0.0 if hits == 0 else _beta_quantile(LEVEL / 2, counted, others + 1)
    high = 1.0 if hits == samples else 1 - _beta_quantile(LEVEL / 2, others, counted + 1)
    return low, high


def _beta_quantile(level: float, a: float, b: float) -> float:
    """Return a quantile of the beta distribution, below its mean: by bisection, to 1e-9 of the bracket."""
    low, high = 0.0, a / (a + b)
    for _ in range(30):
        middle = (low + high) / 2
        if _beta_cdf(middle, a, b) < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function for x up to the mean, where its continued fraction (Abramowitz and
    Stegun, 26.5.8) converges; evaluated by Lentz's method."""
    tiny = 1e-300
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 0.0
    fraction, step, number = 1.0, 0.0, 0
    while abs(step - 1) > _PRECISION:
        half = number // 2
        if number == 0:
            term = 1.0
        elif number % 2 == 0:
            term = half * (b - half) * x / ((a + number - 1) * (a + number))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + number - 1) * (a + number))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        step = c * d
        fraction *= step
        number += 1
    return scale * (fraction - 1)


def burst_inflation(gemodel: tuple[float, ...]) -> float:
    """Return the ratio of the variance of Gilbert-Elliott losses to that of independent losses of equal share; at least
    1.

    The correlation of states decays by a factor 1 - p - r per frame, which adds a geometric series to the variance of a
    long sum.
    """
    p, r, bad, good = gemodel
    if not 0 < p + r < 2:
        return 1.0
    in_bad = p / (p + r)
    mean = in_bad * bad + (1 - in_bad) * good
    variance = mean * (1 - mean)
    if not variance:
        return 1.0
    decay = 1 - p - r
    covariance = (bad - good) ** 2 * in_bad * (1 - in_bad) * decay / (1 - decay)
    return max(1.0, 1 + 2 * covariance / variance)


def rank_error(share: float, samples: int) -> float:
    """Return the maximum distance, as a share, between the rank of an empirical quantile and its true rank at LEVEL."""
    return LEVEL_Z * math.sqrt(share * (1 - share) / samples) if samples else 1.0


def quantile(ordered: Sequence[int], share: float) -> int:
    """Return the smallest value such that at least `share` of the values are not greater. ordered: ascending. Raises
    ValueError for an empty sequence."""
    if not ordered:
        raise ValueError("an empty sequence has no quantile")
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def distance_bound(samples: int) -> float:
    """Return the maximum distance at LEVEL between the empirical distribution of a sample and the true one: the bound of
    Dvoretzky, Kiefer and Wolfowitz with Massart's constant, which holds for samples of any size."""
    return math.sqrt(-math.log(LEVEL / 2) / 2 / samples)


def distance(ordered: Sequence[float], cumulative: Callable[[float], float]) -> float:
    """Return the greatest distance between the empirical distribution of sorted values and a continuous distribution."""
    count = len(ordered)
    return max(
        max(abs(cumulative(value) - index / count), abs(cumulative(value) - (index + 1) / count))
        for index, value in enumerate(ordered)
    )


def distance_within(measured: Sequence[int], expected: Sequence[int], late: int) -> float:
    """Return the greatest distance between two empirical distributions, where measured values may exceed the expected ones
    by up to `late`.

    measured, expected: ascending. The distance is 0 if the measured distribution lies between the expected one and the
    expected one shifted by `late`.
    """
    worst = 0.0
    below = shifted_below = 0
    count, expected_count = len(measured), len(expected)
    for index, value in enumerate(measured):
        while below < expected_count and expected[below] <= value:
            below += 1
        while shifted_below < expected_count and expected[shifted_below] + late < value:
            shifted_below += 1
        # Too many early values, or too many late ones.
        worst = max(worst, (index + 1) / count - below / expected_count, shifted_below / expected_count - index / count)
    return worst

"""Statistical checks at a level of one in a million and with a stated power; samples that are too small are rejected.

A check compares a sample with the expected value, and fails beyond 4.89 standard deviations, which a correct sample exceeds
once in a million. It also fails if the sample is so small that a deviation of 20 % would be missed in more than one case of
a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from testbed.controller.verdict.statistics import LEVEL_Z, MIN_DEVIATION, distance, distance_bound, smallest_visible


class TooSmallError(AssertionError):
    """The sample is too small to detect a deviation of 20 %."""


def check_mean(measured: float, requested: float, standard_error: float, quantity: str) -> float:
    """Check a mean; return the smallest relative deviation that the sample can detect."""
    detectable = smallest_visible(requested, standard_error)
    if detectable > MIN_DEVIATION:
        raise TooSmallError(
            f"{quantity}: the sample detects deviations of {detectable:.0%} or more; {MIN_DEVIATION:.0%} is required"
        )
    assert abs(measured - requested) <= LEVEL_Z * standard_error, (
        f"{quantity}: {measured:.6g}, not {requested:.6g} (detects {detectable:.1%})"
    )
    return detectable


def check_share(hits: int, samples: int, requested: float, quantity: str) -> float:
    """Check a binomial share; return the smallest relative deviation that the sample can detect."""
    return check_mean(hits / samples, requested, math.sqrt(requested * (1 - requested) / samples), quantity)


def check_distribution(sample: Sequence[float], cumulative: Callable[[float], float], quantity: str) -> None:
    """Check a sample by the Kolmogorov-Smirnov test, with its asymptotic bound, which is conservative."""
    ordered_sample = sorted(sample)
    count = len(ordered_sample)
    bound = distance_bound(count)
    if bound > MIN_DEVIATION / 4:
        raise TooSmallError(f"{quantity}: {count} values detect a difference of {bound:.1%} or more")
    worst = distance(ordered_sample, cumulative)
    assert worst <= bound, f"{quantity}: differs by {worst:.4f}, more than {bound:.4f}"

"""Statistical checks at a level of one in a million, with a stated power; samples that are too small are refused.

A check compares a sample with the expected value. It fails beyond 4.89 standard deviations (a sound sample does so once
in a million). A deviation that it would miss in more than one case of a hundred must be below 20 % of the expected
value: otherwise the sample is too small to mean anything, and the check fails as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from testbed.controller.verdict.statistics import LEVEL_Z, MIN_DEVIATION, distance, distance_bound, smallest_visible


class TooSmallError(AssertionError):
    """The sample cannot see a deviation of 20 %."""


def check_mean(measured: float, requested: float, standard_error: float, quantity: str) -> float:
    """Returns the smallest deviation that the sample can see."""
    visible = smallest_visible(requested, standard_error)
    if visible > MIN_DEVIATION:
        raise TooSmallError(
            f"{quantity}: the sample sees deviations from {visible:.0%} on only; {MIN_DEVIATION:.0%} is asked for"
        )
    assert abs(measured - requested) <= LEVEL_Z * standard_error, (
        f"{quantity}: {measured:.6g}, not {requested:.6g} (sees {visible:.1%})"
    )
    return visible


def check_share(hits: int, samples: int, requested: float, quantity: str) -> float:
    """A binomial share. Returns the smallest relative deviation that the sample can see."""
    return check_mean(hits / samples, requested, math.sqrt(requested * (1 - requested) / samples), quantity)


def check_distribution(sample: Sequence[float], cumulative: Callable[[float], float], quantity: str) -> None:
    """Kolmogorov and Smirnov's test; its bound is the limit for large samples, which is on the safe side."""
    ordered_sample = sorted(sample)
    count = len(ordered_sample)
    bound = distance_bound(count)
    if bound > MIN_DEVIATION / 4:
        raise TooSmallError(f"{quantity}: {count} values see a difference of {bound:.1%} at best")
    worst = distance(ordered_sample, cumulative)
    assert worst <= bound, f"{quantity}: differs by {worst:.4f}, more than {bound:.4f}"

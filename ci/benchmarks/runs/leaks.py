"""Leaks: growth that lasts beyond the warm-up.

The slope of the second half is the Theil-Sen estimator: the median of the slopes of all pairs, which a few steps and
outliers do not move. Its interval comes from Kendall's statistic (Sen, "Estimates of the regression coefficient based on
Kendall's tau", 1968), at the level of one in a million. The interval's lower end is the growth beyond doubt.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN = 15
"""Minimum number of samples in the second half: with fewer, no interval of that level exists."""

_LEVEL = 4.89  # standard deviations: one in a million, two-sided
_WARM = 0.5  # share of the time that is ignored as warm-up

Sample = tuple[float, float]
"""A sample: its time in seconds, and a value."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth in the second half of an observation: by the slope, and the ends of its interval. seconds: length of that
    half."""

    gained: float
    least: float
    most: float
    seconds: float
    samples: int


def growth(samples: Sequence[Sample]) -> Growth:
    """Return the growth in the second half. Raises ValueError for too few samples."""
    result = second_half(samples)
    if len(result) < MIN:
        raise ValueError(f"{len(result)} samples are too few to detect a leak; {MIN} are needed in the second half")
    pairs = itertools.combinations(result, 2)
    slopes = sorted((after - before) / (then - when) for (when, before), (then, after) in pairs)
    count = len(result)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    edge = max(0, math.floor((len(slopes) - _LEVEL * deviation) / 2))
    seconds = result[-1][0] - result[0][0]
    least, most = slopes[edge], slopes[len(slopes) - 1 - edge]
    return Growth(statistics.median(slopes) * seconds, least * seconds, most * seconds, seconds, count)


def second_half(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of the second half of the time."""
    start, ended = samples[0][0], samples[-1][0]
    return [sample for sample in samples if sample[0] >= start + _WARM * (ended - start)]


def minimum_increase(samples: Sequence[Sample]) -> float:
    """Return the minimum of the last third minus that of the third before, for counts of objects such as descriptors, which
    are either short-lived or leaked.
    """
    start, ended = samples[0][0], samples[-1][0]
    first, second = start + (ended - start) / 3, start + 2 * (ended - start) / 3
    earlier = [value for when, value in samples if first <= when < second]
    later = [value for when, value in samples if when >= second]
    if not (earlier and later):
        raise ValueError(f"{len(samples)} samples are too few to detect a leak")
    return min(later) - min(earlier)

"""Ratios of samples and their intervals: exact ranks, the stated coverage, and samples that are too small."""

from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.observe.comparing.comparison import Judgement, judge
from testbed.observe.comparing.ratios import (
    Ratio,
    independent,
    min_samples,
    min_samples_to_constant,
    paired,
    rank_counts,
    to_constant,
)
from testbed.observe.format.quantities import Sense

VALUES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=12)


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (2, 3), (4, 4), (5, 2)])
def test_rank_counts_equal_those_of_an_enumeration(ours: int, theirs: int) -> None:
    counts = [0] * (ours * theirs + 1)
    for positions in combinations(range(ours + theirs), ours):
        counts[sum(position - index for index, position in enumerate(positions))] += 1
    assert rank_counts(ours, theirs) == counts


@given(ours=VALUES, theirs=VALUES, factor=st.floats(0.1, 10))
def test_scaling_one_sample_scales_the_ratio(ours, theirs, factor) -> None:
    first, second = independent(ours, theirs, 0.05), independent(ours, [factor * value for value in theirs], 0.05)
    assert second.value == pytest.approx(factor * first.value)
    if first.low is not None and first.high is not None:
        assert first.low <= first.value <= first.high
        assert second.low == pytest.approx(factor * first.low)
        assert second.high == pytest.approx(factor * first.high)


@given(ours=VALUES, theirs=VALUES)
def test_exchanging_the_samples_inverts_the_ratio(ours, theirs) -> None:
    first, second = independent(ours, theirs, 0.05), independent(theirs, ours, 0.05)
    assert first.excludes_one == second.excludes_one
    if first.low is not None and first.high is not None:
        assert (first.low, first.high) == pytest.approx((1 / second.high, 1 / second.low))


def test_intervals_have_the_stated_coverage() -> None:
    """At most 85 of 1,000 intervals at 95 %, of 20 and 20 samples of a skewed distribution, miss the ratio: the binomial
    bound of 5 % at one in a million."""
    rng = random.Random(7)
    missed = 0
    for _ in range(1000):
        first_samples = [math.exp(rng.gauss(0, 1)) for _ in range(20)]
        second_samples = [2 * math.exp(rng.gauss(0, 1)) for _ in range(20)]
        interval = independent(first_samples, second_samples, 0.05)
        assert interval.low is not None
        assert interval.high is not None
        missed += not interval.low <= 2 <= interval.high
    assert 15 <= missed <= 85


def test_a_sample_below_the_minimum_size_has_no_interval() -> None:
    count = min_samples(0.05)
    assert count == 4
    assert independent([1.0] * (count - 1), [9.0] * (count - 1), 0.05).low is None
    assert independent([1.0] * count, [9.0] * count, 0.05).excludes_one
    assert min_samples_to_constant(0.05) == 6
    assert to_constant(1, [2.0] * 5, 0.05, exact=False).low is None
    assert to_constant(1, [2.0] * 6, 0.05, exact=False).excludes_one


def test_large_samples_detect_a_small_difference() -> None:
    rng = random.Random(3)
    first_samples = [rng.gauss(100, 1) for _ in range(60)]
    interval = independent(first_samples, [1.02 * rng.gauss(100, 1) for _ in range(60)], 0.01)
    assert interval.excludes_one
    assert interval.value == pytest.approx(1.02, abs=0.005)


def test_one_exact_pair_decides_and_few_pairs_must_agree() -> None:
    assert paired([10.0], [11.0], 0.05) == Ratio(1.1, 1.1, 1.1)
    assert paired([10.0, 20.0, 30.0], [11.0, 22.0, 33.0], 0.05).excludes_one
    assert not paired([10.0, 20.0, 30.0], [11.0, 19.0, 33.0], 0.05).excludes_one
    many_pairs = paired([10.0] * 20, [11.0] * 19 + [9.0], 0.05)  # one outlier among many pairs does not matter
    assert many_pairs.excludes_one
    assert many_pairs.value == median([1.1])


def test_a_ratio_to_zero_is_infinite() -> None:
    assert independent([0.0] * 4, [0.0] * 4, 0.05) == Ratio(1.0, 1.0, 1.0)
    assert independent([0.0] * 4, [5.0] * 4, 0.05).value == math.inf


@pytest.mark.parametrize(
    ("ratio", "sense", "expected"),
    [
        (Ratio(1.2, 1.1, 1.3), Sense.LESS, Judgement.WORSE),
        (Ratio(1.2, 1.1, 1.3), Sense.MORE, Judgement.BETTER),
        (Ratio(0.8, 0.7, 0.9), Sense.LESS, Judgement.BETTER),
        (Ratio(0.8, 0.7, 0.9), Sense.MORE, Judgement.WORSE),
        (Ratio(1.2, 0.9, 1.4), Sense.LESS, Judgement.UNDECIDED),
        (Ratio(1.04, 1.03, 1.05), Sense.LESS, Judgement.NO_DIFFERENCE),
        (Ratio(1.2), Sense.LESS, Judgement.UNDECIDED),
        (Ratio(1.04), Sense.LESS, Judgement.NO_DIFFERENCE),
        (Ratio(math.inf, math.inf, math.inf), Sense.LESS, Judgement.WORSE),
        (Ratio(1.2, 1.1, 1.3), Sense.NONE, Judgement.NO_DIFFERENCE),
    ],
)
def test_a_difference_counts_if_it_exceeds_threshold_and_interval(ratio, sense, expected) -> None:
    assert judge(ratio, sense, 0.05) is expected

"""Intervals and distances: bounds that correct samples keep and deviating ones exceed."""

from __future__ import annotations

import math
import random

import pytest

from testbed.controller.assertions.shares import binomial_tail, log_binomial
from testbed.controller.verdict import statistics
from testbed.controller.verdict.statistics import (
    burst_inflation,
    distance_bound,
    distance_within,
    quantile,
    rank_error,
    required_samples,
    share_interval,
)
from testbed.fates.loss_models import GilbertElliott


def test_a_share_lies_within_its_own_interval_and_a_doubled_one_does_not() -> None:
    low, high = share_interval(500, 10_000)
    assert low < 0.05 < high
    assert high < 0.1
    assert low > 0.025


@pytest.mark.parametrize(("hits", "samples"), [(10, 75), (3, 20), (1, 1), (300, 4_000), (990, 1_000), (30_000, 10**6)])
def test_the_interval_has_the_level_it_claims(hits: int, samples: int) -> None:
    """At each end of the interval the tail probability of the observed hits is half of the level."""
    low, high = share_interval(hits, samples)
    assert binomial_tail(hits, samples, low, 1) == pytest.approx(statistics.LEVEL / 2, rel=1e-3)
    if hits < samples:
        assert binomial_tail(hits, samples, high, -1) == pytest.approx(statistics.LEVEL / 2, rel=1e-3)


@pytest.mark.parametrize(("share", "samples"), [(0.03, 75), (0.01, 20), (0.3, 50), (0.0001, 10_000), (0.97, 75)])
def test_the_interval_of_a_small_sample_misses_the_share_no_more_often_than_the_level(
    share: float, samples: int
) -> None:
    outside = [hits for hits in range(samples + 1) if not contains(share_interval(hits, samples), share)]
    assert outside
    assert sum(math.exp(log_binomial(hits, samples, share)) for hits in outside) <= statistics.LEVEL


def contains(interval: tuple[float, float], share: float) -> bool:
    return interval[0] <= share <= interval[1]


def test_zero_hits_exclude_no_small_share_and_all_hits_no_large_one() -> None:
    low, high = share_interval(0, 1_000)
    assert low == 0
    assert 0.014 < high < 0.015
    low, high = share_interval(1_000, 1_000)
    assert high == 1
    assert 0.985 < low < 0.986
    assert share_interval(0, 0) == (0, 1)


def test_bursts_widen_the_interval() -> None:
    plain, burst = share_interval(500, 10_000), share_interval(500, 10_000, inflation=9)
    assert burst[0] < plain[0] < plain[1] < burst[1]


def test_losses_in_bursts_have_the_expected_extra_variance() -> None:
    """Compare the variance of loss counts in long stretches with that of independent losses of the same share."""
    parameters = (0.05, 0.2, 1.0, 0.0)
    stretch, stretches = 1_000, 600
    model = GilbertElliott(parameters, 7)
    sums = [sum(model.step(stretch * index + n) for n in range(stretch)) for index in range(stretches)]
    mean = sum(sums) / stretches
    variance = sum((value - mean) ** 2 for value in sums) / (stretches - 1)
    share = 0.05 / 0.25
    independent = stretch * share * (1 - share)
    # The relative standard error of a variance of 600 sums is sqrt(2 / 599); the level is at 4.892 of them.
    assert variance / independent == pytest.approx(burst_inflation(parameters), rel=4.892 * (2 / 599) ** 0.5)


def test_uncorrelated_states_do_not_increase_the_variance() -> None:
    assert burst_inflation((0.3, 0.7, 1.0, 0.0)) == pytest.approx(1)
    assert burst_inflation((0.0, 0.0, 1.0, 0.0)) == 1
    assert burst_inflation((0.5, 0.5, 0.0, 0.0)) == 1  # both states lose equally: none


def test_the_required_number_of_samples_is_minimal() -> None:
    samples = required_samples(0.05, 0.05 * 0.95)
    assert statistics.smallest_visible(0.05, (0.05 * 0.95 / samples) ** 0.5) == pytest.approx(0.2, rel=1e-3)


def test_quantiles_are_elements_of_the_sample() -> None:
    values = [10, 20, 30, 40]
    assert [quantile(values, share) for share in (0, 0.25, 0.5, 0.75, 0.99, 1)] == [10, 10, 20, 30, 40, 40]
    with pytest.raises(ValueError, match="empty sequence"):
        quantile([], 0.5)


def test_the_rank_of_a_quantile_is_less_certain_with_fewer_samples() -> None:
    assert rank_error(0.5, 100) > rank_error(0.5, 10_000) > 0
    assert rank_error(0.5, 0) == 1


def uniform_sample(count: int, width: int, late: int = 0, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return sorted(rng.randrange(width) + late for _ in range(count))


def test_a_correct_sample_is_within_its_distribution() -> None:
    expected = list(range(0, 1_000_000, 250))
    assert distance_within(uniform_sample(3_000, 1_000_000), expected, 0) < distance_bound(3_000)


def test_a_late_sample_is_accepted_up_to_the_allowed_lateness() -> None:
    expected = list(range(0, 1_000_000, 250))
    sample = uniform_sample(3_000, 1_000_000, late=200_000)
    assert distance_within(sample, expected, 200_000) < distance_bound(3_000)
    assert distance_within(sample, expected, 0) > 0.15 + distance_bound(3_000)


def test_an_early_sample_is_never_within() -> None:
    expected = list(range(200_000, 1_200_000, 250))
    assert distance_within(uniform_sample(3_000, 1_000_000), expected, 500_000) > 0.15

"""Error probabilities of the statistical assertions, computed exactly: a correct link fails at most once in a million runs,
one off by a fifth passes at most once in a hundred, for any number of looks of a sequential test."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from testbed.controller.assertions.sample_quantiles import rank_interval
from testbed.controller.assertions.sequential import is_rejected, rank_sequence
from testbed.controller.assertions.shares import MAX_MISSED, binomial_tail, required_frames, required_probes, two_sided
from testbed.controller.verdict.statistics import LEVEL

SHARES = [0.01, 0.05, 0.3, 0.5, 0.9]


def binomial(samples: int, share: float) -> np.ndarray:
    """Binomial distribution, computed from logarithms of factorials."""
    hits = np.arange(samples + 1)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, samples + 1)))))
    logs = factorials[-1] - factorials[hits] - factorials[samples - hits]
    return np.exp(logs + hits * math.log(share) + (samples - hits) * math.log1p(-share))


@pytest.mark.parametrize("share", SHARES)
def test_a_complete_sample_has_false_alarms_once_in_a_million_and_misses_once_in_a_hundred(share: float) -> None:
    sent = required_frames(share)
    # The probability falls from the middle to both ends: the assertion fails below one count and above another.
    middle = round(sent * share)
    low = next(hits for hits in range(middle, -2, -1) if hits < 0 or two_sided(hits, sent, share) < LEVEL)
    high = next(hits for hits in range(middle, sent + 2) if hits > sent or two_sided(hits, sent, share) < LEVEL)

    def failure_probability(true_share: float) -> float:
        chances = binomial(sent, true_share)
        return float(chances[: low + 1].sum() + chances[high:].sum())

    assert failure_probability(share) <= LEVEL
    for true_share in (share * 0.8, share * 1.2):
        if true_share < 1:
            assert failure_probability(true_share) >= 1 - MAX_MISSED


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("samples", [21, 200, 5000])
def test_an_interval_of_a_quantile_misses_it_once_in_a_million_and_is_no_wider_than_that_needs(
    share: float, samples: int
) -> None:
    ranks = rank_interval(samples, share)
    if ranks is None:
        assert (samples, share) != (21, 0.5)
        assert max(share, 1 - share) ** samples > LEVEL / 2
        return
    low, high = ranks
    below, above = (binomial_tail(low - 1, samples, share, -1), binomial_tail(high, samples, share, 1))
    chances = binomial(samples, share)
    assert below == pytest.approx(float(chances[:low].sum()), rel=1e-6)
    assert below + above <= LEVEL
    assert float(chances[: low + 1].sum()) > LEVEL / 2
    assert float(chances[high - 1 :].sum()) > LEVEL / 2


def outcomes(requested: float, true_share: float, max_frames: int) -> Iterator[tuple[float, float]]:
    """Yield the probabilities that `ShareTest` has failed and has passed after each frame, over all sequences of hits.

    Computed from Wald's definition, independently of the product.
    """
    ratios = [
        (math.log(alternative / requested), math.log((1 - alternative) / (1 - requested)))
        for alternative in (requested * 1.2, requested * 0.8)
    ]
    undecided = {(False, False): np.ones(1)}  # excluded alternatives -> probabilities by number of hits
    failed = passed = 0.0
    for count in range(1, max_frames + 1):
        hits = np.arange(count + 1)
        values = [hits * hit + (count - hits) * miss for hit, miss in ratios]
        fails = (values[0] >= math.log(2 / LEVEL)) | (values[1] >= math.log(2 / LEVEL))
        after: dict[tuple[bool, bool], np.ndarray] = {}
        for excluded, chances in undecided.items():
            moved = np.zeros(count + 1)
            moved[:-1] += chances * (1 - true_share)
            moved[1:] += chances * true_share
            failed += float(moved[fails].sum())
            moved[fails] = 0
            for up in (False, True):
                for down in (False, True):
                    upper, lower = (value <= math.log(MAX_MISSED) for value in values)
                    part = np.where((upper == up) & (lower == down), moved, 0)
                    state = excluded[0] or up, excluded[1] or down
                    if state == (True, True):
                        passed += float(part.sum())
                    else:
                        after[state] = after.get(state, 0) + part
        undecided = after
        yield failed, passed


def test_a_sequential_test_of_a_share_keeps_its_levels_and_ends() -> None:
    requested = 0.5
    max_frames = 2 * required_frames(requested)
    *_, (failed, passed) = outcomes(requested, requested, max_frames)
    assert failed <= LEVEL
    assert passed > 0.99
    for true_share in (requested * 0.8, requested * 1.2):
        *_, (failed, passed) = outcomes(requested, true_share, max_frames)
        assert passed <= MAX_MISSED
        assert failed > 0.95


def test_a_sequential_test_of_a_correct_share_mostly_decides_before_a_complete_sample_is_large_enough() -> None:
    median_count = next(count for count, (_, passed) in enumerate(outcomes(0.5, 0.5, 5000), 1) if passed > 0.5)
    assert median_count < 0.75 * required_frames(0.5)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_confidence_sequence_of_a_quantile_misses_it_at_most_once_in_a_million(share: float) -> None:
    chances, missed = np.ones(1), 0.0
    for count in range(1, 801):
        moved = np.zeros(count + 1)
        moved[:-1] += chances * (1 - share)
        moved[1:] += chances * share
        ranks = rank_sequence(count, share)
        if ranks is not None:
            low, high = ranks
            assert is_rejected(low - 1, count, share, LEVEL)
            assert not is_rejected(low, count, share, LEVEL)
            rejected = np.r_[0:low, high : count + 1]
            missed += float(moved[rejected].sum())
            moved[rejected] = 0
        chances = moved
    assert 0 < missed <= LEVEL


def test_a_reachable_peer_is_silent_by_chance_once_in_a_million() -> None:
    for loss in (0.01, 0.3, 0.51, 0.9):
        assert loss ** required_probes(loss) <= LEVEL * (1 + 1e-6) < loss ** (required_probes(loss) - 1)
    assert required_probes(0) == 1

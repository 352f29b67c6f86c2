"""assert_loss: the binomial distribution decides, and an inconclusive sample is refused."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.assertions.shares import required_frames, two_sided
from testbed.pytest_plugin import SampleTooSmallError, assert_loss


def exact_p_value(hits: int, samples: int, share: float) -> float:
    """Compute the two-sided p-value in exact fractions."""
    probability = Fraction(share)
    tail = range(hits, samples + 1) if hits > samples * share else range(hits + 1)
    tail_sum = sum(math.comb(samples, k) * probability**k * (1 - probability) ** (samples - k) for k in tail)
    return float(min(Fraction(1), 2 * tail_sum))


@given(samples=st.integers(1, 150), share=st.floats(0.001, 0.999), data=st.data())
def test_the_p_value_of_a_sample_is_exact(samples: int, share: float, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, samples))
    assert two_sided(hits, samples, share) == pytest.approx(exact_p_value(hits, samples, share), rel=1e-9, abs=1e-300)


def test_a_million_frames_are_assessed_quickly() -> None:
    assert two_sided(300_000, 1_000_000, 0.3) == pytest.approx(1, abs=0.01)
    assert two_sided(302_300, 1_000_000, 0.3) == pytest.approx(5.2e-7, rel=0.05)  # 5.02 standard deviations


def test_a_correct_link_passes_and_one_off_by_a_fifth_fails() -> None:
    rng = random.Random(1)
    sent = required_frames(0.3)
    failed = 0
    for _ in range(200):
        assert_loss("30%", sum(rng.random() < 0.3 for _ in range(sent)), sent)
        try:
            assert_loss(0.3, sum(rng.random() < 0.24 for _ in range(sent)), sent)
        except AssertionError:
            failed += 1
    assert failed >= 190, "99 of 100 should fail"


def test_an_assertions_message_has_the_measured_values() -> None:
    with pytest.raises(
        AssertionError, match=r"1,200 of 10,000 frames were lost, 0\.12; expected 0\.3\. The probability .*3,000"
    ):
        assert_loss(0.3, 1_200, 10_000)


def test_too_few_frames_are_rejected() -> None:
    for lost in (20, 30, 40):
        with pytest.raises(SampleTooSmallError, match=r"100 frames cannot show .* send 3,196 or more"):
            assert_loss(0.3, lost, 100)
    with pytest.raises(SampleTooSmallError, match="no frame was sent"):
        assert_loss(0, 0, 0)


def test_few_frames_that_contradict_the_share_fail() -> None:
    for lost in (0, 100):
        with pytest.raises(AssertionError, match=rf"{lost} of 100 frames were lost.* expected 0\.3"):
            assert_loss(0.3, lost, 100)


def test_losses_of_0_and_1_are_exact() -> None:
    assert_loss(0, 0, 1)
    assert_loss("100%", 7, 7)
    with pytest.raises(AssertionError, match="exactly 0"):
        assert_loss(0, 1, 10_000)
    with pytest.raises(AssertionError, match="exactly 7"):
        assert_loss(1, 6, 7)


def test_impossible_numbers_are_rejected() -> None:
    for lost, sent in ((5, 4), (-1, 4)):
        with pytest.raises(ValueError, match="that were lost must be 0 to"):
            assert_loss(0.5, lost, sent)
    with pytest.raises(ValueError, match="did you mean"):
        assert_loss("30", 1, 4)

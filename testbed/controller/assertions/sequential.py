"""Assertions on samples that come one by one: they end as soon as the answer is sure, and are right whenever that is.

    until_sure(loss_test("30%"), (probe() for _ in range(100_000)))

A test's `add` returns True once the link is sound, and raises AssertionError once it is not. Shares are decided by Wald's
sequential probability ratio test ("Sequential Tests of Statistical Hypotheses", Annals of Mathematical Statistics 16,
1945) against the deviations up and down; quantiles by a confidence sequence, the mixture of H. Robbins ("Statistical
Methods Related to the Law of the Iterated Logarithm", Annals of Mathematical Statistics 41, 1970) over all shares alike,
applied to the number of samples below the quantile (S. R. Howard and A. Ramdas, "Sequential estimation of quantiles",
Bernoulli 28, 2022). Both reject where a likelihood ratio reaches 1 / `LEVEL`: under what was asked for it does so, ever,
with that probability at most (J. Ville, "Etude critique de la notion de collectif", 1939), so that looking after every
sample costs nothing.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from testbed.controller.assertions.sample_quantiles import (
    Distribution,
    ExpectedQuantile,
    asked_delay,
    asked_jitter,
    asked_rate,
    block_rates,
)
from testbed.controller.assertions.shares import (
    MISSED,
    SampleTooSmallError,
    check_deviation,
    enough_probes,
    log_binomial,
)
from testbed.controller.verdict.statistics import COARSEST, LEVEL
from testbed.spec.units import parse_probability

_Sample = TypeVar("_Sample", contravariant=True)


class SequentialTest(Protocol[_Sample]):
    """A test that is given one sample after the other. count: samples so far."""

    count: int

    def add(self, sample: _Sample) -> bool:
        """Take a sample; return whether the link is sound for sure. Raises AssertionError if it is not."""
        ...


def until_sure(test: SequentialTest[_Sample], samples: Iterable[_Sample]) -> int:
    """Take samples until the test is sure; return how many it took. Raises AssertionError for a link that is not as asked;
    SampleTooSmallError where the samples end before."""
    __tracebackhide__ = True
    for sample in samples:
        if test.add(sample):
            return test.count
    raise SampleTooSmallError(f"{test.count:,} samples were not enough to be sure: {test}")


class ShareTest:
    """Sequential probability ratio test of a share of frames. count, hits: so far."""

    def __init__(self, asked: float | str, done: str, off: float = COARSEST) -> None:
        """done: what becomes of the frames that are hit, "lost". Raises ValueError where `asked` is 0 or 1: there is no
        deviation by a part of it, and the assertions on complete samples take it."""
        self._asked = share = parse_probability(asked)
        check_deviation(off)
        if not 0 < share < 1:
            raise ValueError(
                f"a share of {share:g} leaves nothing to chance: count all frames, and assert that at the end"
            )
        self._done = done
        self._off = off
        self.count = self.hits = 0
        up = min(share * (1 + off), (1 + share) / 2)  # no share is above 1
        self._steps = [
            (math.log(other / share), math.log((1 - other) / (1 - share))) for other in (up, share * (1 - off))
        ]
        self._ratios = [
            0.0,
            0.0,
        ]  # logarithms of the likelihood ratios: of the deviations up and down, to what is asked
        self._excluded = [False, False]

    def __str__(self) -> str:
        return f"{self.hits:,} were {self._done}, expected {self._asked:.4g}"

    def add(self, sample: bool) -> bool:
        """Take a frame; sample: whether it was hit. Returns and raises as `SequentialTest.add`."""
        __tracebackhide__ = True
        self.count += 1
        self.hits += sample
        for side, (hit, miss) in enumerate(self._steps):
            ratio = self._ratios[side] = self._ratios[side] + (hit if sample else miss)
            if ratio >= -math.log(LEVEL / 2):
                raise AssertionError(
                    f"{self.hits:,} of {self.count:,} frames were {self._done}, {self.hits / self.count:.4g}; expected "
                    f"{self._asked:.4g} (sure at the level {LEVEL:g} after {self.count:,} frames)"
                )
            self._excluded[side] |= ratio <= math.log(MISSED)
        return all(self._excluded)


class QuantileTest:
    """Confidence sequences of quantiles, all of which must become narrow around what is asked for."""

    def __init__(self, quantiles: Sequence[ExpectedQuantile]) -> None:
        self._quantiles = quantiles
        self._level = LEVEL / len(quantiles)
        self._ordered: list[float] = []
        self.count = 0

    def __str__(self) -> str:
        return " and ".join(quantile.what for quantile in self._quantiles)

    def add(self, sample: float) -> bool:
        """Take a value. Returns and raises as `SequentialTest.add`."""
        __tracebackhide__ = True
        insort(self._ordered, sample)
        self.count += 1
        sure = 0
        for quantile in self._quantiles:
            ranks = rank_sequence(self.count, quantile.share, self._level)
            if ranks is not None:
                low, high = self._ordered[ranks[0] - 1], self._ordered[ranks[1] - 1]
                sure += quantile.is_sure(low, high, self.count)
        return sure == len(self._quantiles)


class RateTest:
    """Sequential test of a rate, of arrivals. count: frames so far."""

    def __init__(self, asked: int | str, frames: int, overhead: int, off: float) -> None:
        self._test = QuantileTest(asked_rate(asked, off))
        self._frames = frames
        self._overhead = overhead
        self._stretch: list[tuple[int, int]] = []
        self.count = 0

    def __str__(self) -> str:
        return f"{self._test}, of {self._test.count:,} stretches of {self._frames} frames"

    def add(self, sample: tuple[int, int]) -> bool:
        """Take a frame's time of arrival in nanoseconds, and its bytes. Returns and raises as `SequentialTest.add`."""
        __tracebackhide__ = True
        self.count += 1
        self._stretch.append(sample)
        if len(self._stretch) <= self._frames:
            return False
        (rate,) = block_rates(self._stretch, self._frames, self._overhead)
        self._stretch = [sample]
        return self._test.add(rate)


class ReachabilityTest:
    """Test that is sure with the first answer, and fails once so many probes without one cannot be chance."""

    def __init__(self, loss: float | str = 0.0) -> None:
        share = parse_probability(loss)
        if share >= 1:
            raise ValueError("a path that loses every probe cannot be told from none")
        self._enough = enough_probes(share)
        self.count = 0

    def __str__(self) -> str:
        return f"none was answered, and {self._enough:,} are needed to tell that from loss"

    def add(self, sample: bool) -> bool:
        """Take a probe; sample: whether it was answered. Returns and raises as `SequentialTest.add`."""
        __tracebackhide__ = True
        self.count += 1
        if not sample and self.count >= self._enough:
            raise AssertionError(f"none of {self.count:,} probes was answered")
        return sample


def loss_test(asked: float | str, *, off: float = COARSEST) -> ShareTest:
    """Make a test of independent losses; samples: whether a frame was lost. As `assert_loss`."""
    return ShareTest(asked, "lost", off)


def duplicates_test(asked: float | str, *, off: float = COARSEST) -> ShareTest:
    """Make a test of copies; samples: whether a frame came twice. As `assert_duplicates`."""
    return ShareTest(asked, "doubled", off)


def order_test(asked: float | str, *, off: float = COARSEST) -> ShareTest:
    """Make a test of order; samples: whether a frame arrived behind one sent later. As `assert_order`."""
    return ShareTest(asked, "out of order", off)


def delay_test(asked: int | str, *, late: int | str = 0, off: float = COARSEST) -> QuantileTest:
    """Make a test of a delay; samples: one-way delays, nanoseconds. As `assert_delay`."""
    return QuantileTest(asked_delay(asked, late, off))


def jitter_test(
    asked: int | str,
    *,
    delay: int | str,
    distribution: Distribution = "uniform",
    late: int | str = 0,
    off: float = COARSEST,
) -> QuantileTest:
    """Make a test of a jitter; samples: one-way delays, nanoseconds. As `assert_jitter`."""
    return QuantileTest(asked_jitter(asked, delay, distribution, late, off))


def rate_test(asked: int | str, *, frames: int = 20, overhead: int = 0, off: float = COARSEST) -> RateTest:
    """Make a test of a rate; samples: time of arrival, nanoseconds, and bytes of frames that waited for one another.

    frames: in each stretch whose rate counts as one sample. As `assert_rate`.
    """
    return RateTest(asked, frames, overhead, off)


def reachability_test(loss: float | str = 0.0) -> ReachabilityTest:
    """Make a test of reachability; samples: whether a probe was answered. As `assert_reachable`."""
    return ReachabilityTest(loss)


def rank_sequence(samples: int, share: float, level: float = LEVEL) -> tuple[int, int] | None:
    """Return the ranks, from 1, of the two samples between which the quantile lies; None if there are too few samples. But
    for that level it lies there for every number of samples at once."""
    low, high = _last(samples, share, level), _last(samples, 1 - share, level)
    return (low, samples + 1 - high) if low and high else None


def _last(samples: int, share: float, level: float) -> int:
    """Return the greatest rank that the mixture rejects as above the quantile of that share; 0: none."""
    begin, end = 0, math.floor(samples * share)
    while begin < end:
        middle = (begin + end + 1) // 2
        if is_rejected(middle - 1, samples, share, level):
            begin = middle
        else:
            end = middle - 1
    return begin


def is_rejected(hits: int, samples: int, share: float, level: float) -> bool:
    """Whether the likelihood ratio of all shares alike to this one has reached 1 / level: the integral of the binomial
    distribution over its share is 1 / (samples + 1)."""
    return -math.log(samples + 1) - log_binomial(hits, samples, share) >= -math.log(level)

"""Sequential assertions: they take samples one by one and end as soon as they are decided, with valid error levels.

    until_sure(loss_test("30%"), (probe() for _ in range(100_000)))

A test's `add` returns True once it accepts the link, and raises AssertionError once it rejects it. Shares are decided by
Wald's sequential probability ratio test ("Sequential Tests of Statistical Hypotheses", Annals of Mathematical Statistics
16, 1945) against the deviations upwards and downwards. Quantiles are decided by a confidence sequence: the mixture of H.
Robbins ("Statistical Methods Related to the Law of the Iterated Logarithm", Annals of Mathematical Statistics 41, 1970)
with uniform weights of all shares, applied to the number of samples below the quantile (S. R. Howard and A. Ramdas,
"Sequential estimation of quantiles", Bernoulli 28, 2022). Both reject if a likelihood ratio reaches 1 / `LEVEL`. For a
correct link, the probability that it ever does so is at most `LEVEL` (J. Ville, "Etude critique de la notion de
collectif", 1939), so the test may decide after every sample.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from testbed.controller.assertions.sample_quantiles import (
    Distribution,
    ExpectedQuantile,
    block_rates,
    check_samples,
    expected_delay,
    expected_jitter,
    expected_rate,
)
from testbed.controller.assertions.shares import (
    MAX_MISSED,
    SampleTooSmallError,
    check_deviation,
    log_binomial,
    required_probes,
)
from testbed.controller.verdict.statistics import LEVEL, MIN_DEVIATION
from testbed.spec.units import parse_probability

_Sample = TypeVar("_Sample", contravariant=True)


class SequentialTest(Protocol[_Sample]):
    """A test that takes one sample after the other. count: number of samples so far."""

    count: int

    def add(self, sample: _Sample) -> bool:
        """Take a sample; return whether the test accepts the link. Raises AssertionError if it rejects the link."""
        ...


def until_sure(test: SequentialTest[_Sample], samples: Iterable[_Sample]) -> int:
    """Take samples until the test accepts the link; return their number. Raises AssertionError for a rejected link,
    SampleTooSmallError if the samples end before a decision."""
    __tracebackhide__ = True
    for sample in samples:
        if test.add(sample):
            return test.count
    raise SampleTooSmallError(f"{test.count:,} samples were not enough for a decision: {test}")


class ShareTest:
    """Sequential probability ratio test of a share of frames. count: number of frames so far. hits: number of those with the
    property."""

    def __init__(self, asked: float | str, outcome: str, off: float = MIN_DEVIATION) -> None:
        """asked: configured share. outcome: property of a frame that is counted, such as "lost". Raises ValueError if
        `asked` is 0 or 1, which has no relative deviation; the assertions on complete samples support it."""
        self._asked = share = parse_probability(asked)
        check_deviation(off)
        if not 0 < share < 1:
            raise ValueError(
                f"the share must be above 0 and below 1, got {share:g}: use an assertion on a complete sample"
            )
        self._outcome = outcome
        self.count = self.hits = 0
        above = min(share * (1 + off), (1 + share) / 2)  # a share is at most 1
        self._steps = [
            (math.log(alternative / share), math.log((1 - alternative) / (1 - share)))
            for alternative in (above, share * (1 - off))
        ]
        # Logarithms of the likelihood ratios of the upper and lower alternative to the configured share.
        self._ratios = [0.0, 0.0]
        self._is_excluded = [False, False]

    def __str__(self) -> str:
        return f"{self.hits:,} were {self._outcome}, expected {self._asked:.4g}"

    def add(self, sample: bool) -> bool:
        """Take a frame. sample: whether it has the property. For result and errors see `SequentialTest.add`."""
        __tracebackhide__ = True
        self.count += 1
        self.hits += sample
        for side, (hit, miss) in enumerate(self._steps):
            ratio = self._ratios[side] = self._ratios[side] + (hit if sample else miss)
            if ratio >= -math.log(LEVEL / 2):
                raise AssertionError(
                    f"{self.hits:,} of {self.count:,} frames were {self._outcome}, {self.hits / self.count:.4g}; expected "
                    f"{self._asked:.4g} (decided at the level {LEVEL:g} after {self.count:,} frames)"
                )
            self._is_excluded[side] |= ratio <= math.log(MAX_MISSED)
        return all(self._is_excluded)


class QuantileTest:
    """Sequential test of quantiles by confidence sequences: each must become narrow around its expected value."""

    def __init__(self, quantiles: Sequence[ExpectedQuantile]) -> None:
        self._quantiles = quantiles
        self._level = LEVEL / len(quantiles)
        self._ordered: list[float] = []
        self.count = 0

    def __str__(self) -> str:
        return " and ".join(quantile.name for quantile in self._quantiles)

    def add(self, sample: float) -> bool:
        """Take a value. For result and errors see `SequentialTest.add`."""
        __tracebackhide__ = True
        check_samples([sample])
        insort(self._ordered, sample)
        self.count += 1
        decided = 0
        for quantile in self._quantiles:
            ranks = rank_sequence(self.count, quantile.share, self._level)
            if ranks is not None:
                low, high = self._ordered[ranks[0] - 1], self._ordered[ranks[1] - 1]
                decided += quantile.is_decided(low, high, self.count)
        return decided == len(self._quantiles)


class RateTest:
    """Sequential test of a rate. count: number of frames so far."""

    def __init__(self, asked: int | str, frames: int, overhead: int, off: float) -> None:
        if frames < 1:
            raise ValueError(f"a block must have 1 frame or more, got {frames}")
        self._test = QuantileTest(expected_rate(asked, off))
        self._frames = frames
        self._overhead = overhead
        self._block: list[tuple[int, int]] = []
        self.count = 0

    def __str__(self) -> str:
        return f"{self._test}, in {self._test.count:,} blocks of {self._frames} frames"

    def add(self, sample: tuple[int, int]) -> bool:
        """Take a frame: time of arrival, nanoseconds, and bytes. For result and errors see `SequentialTest.add`."""
        __tracebackhide__ = True
        self.count += 1
        self._block.append(sample)
        if len(self._block) <= self._frames:
            return False
        (rate,) = block_rates(self._block, self._frames, self._overhead)
        self._block = [sample]
        return self._test.add(rate)


class ReachabilityTest:
    """Test of reachability: it accepts with the first answer, and rejects once chance cannot explain the missing answers."""

    def __init__(self, loss: float | str = 0.0) -> None:
        self._min_probes = required_probes(parse_probability(loss))
        self.count = 0

    def __str__(self) -> str:
        return f"no probe was answered; {self._min_probes:,} are needed to exclude loss"

    def add(self, sample: bool) -> bool:
        """Take a probe. sample: whether it was answered. For result and errors see `SequentialTest.add`."""
        __tracebackhide__ = True
        self.count += 1
        if not sample and self.count >= self._min_probes:
            raise AssertionError(f"none of {self.count:,} probes was answered")
        return sample


def loss_test(asked: float | str, *, off: float = MIN_DEVIATION) -> ShareTest:
    """Return a test of independent losses. Its samples: whether a frame was lost. The arguments are those of
    `assert_loss`."""
    return ShareTest(asked, "lost", off)


def duplicates_test(asked: float | str, *, off: float = MIN_DEVIATION) -> ShareTest:
    """Return a test of duplicates. Its samples: whether a frame arrived twice. The arguments are those of
    `assert_duplicates`."""
    return ShareTest(asked, "duplicated", off)


def order_test(asked: float | str, *, off: float = MIN_DEVIATION) -> ShareTest:
    """Return a test of order. Its samples: whether a frame overtook an earlier one, as `overtakes` returns it. The arguments
    are those of `assert_order`."""
    return ShareTest(asked, "out of order", off)


def delay_test(asked: int | str, *, late: int | str = 0, off: float = MIN_DEVIATION) -> QuantileTest:
    """Return a test of a delay. Its samples: one-way delays, nanoseconds. The arguments are those of `assert_delay`."""
    return QuantileTest(expected_delay(asked, late, off))


def jitter_test(
    asked: int | str,
    *,
    delay: int | str,
    distribution: Distribution = "uniform",
    late: int | str = 0,
    off: float = MIN_DEVIATION,
) -> QuantileTest:
    """Return a test of a jitter. Its samples: one-way delays, nanoseconds. The arguments are those of `assert_jitter`."""
    return QuantileTest(expected_jitter(asked, delay, distribution, late, off))


def rate_test(asked: int | str, *, frames: int = 20, overhead: int = 0, off: float = MIN_DEVIATION) -> RateTest:
    """Return a test of a rate. Its samples: time of arrival, nanoseconds, and bytes of queued frames.

    frames: number in each block; the rate of a block is a value of the test. The other arguments are those of
    `assert_rate`.
    """
    return RateTest(asked, frames, overhead, off)


def reachability_test(loss: float | str = 0.0) -> ReachabilityTest:
    """Return a test of reachability. Its samples: whether a probe was answered. loss: as for `assert_reachable`."""
    return ReachabilityTest(loss)


def rank_sequence(samples: int, share: float, level: float = LEVEL) -> tuple[int, int] | None:
    """Return the ranks, from 1, of the two samples that bound the quantile; None for too few samples. The bounds hold at a
    confidence of 1 - level for all numbers of samples together."""
    low, high = _max_rank(samples, share, level), _max_rank(samples, 1 - share, level)
    return (low, samples + 1 - high) if low and high else None


def _max_rank(samples: int, share: float, level: float) -> int:
    """Return the greatest rank whose sample the mixture places below the quantile; 0 if there is none."""
    begin, end = 0, math.floor(samples * share)
    while begin < end:
        middle = (begin + end + 1) // 2
        if is_rejected(middle - 1, samples, share, level):
            begin = middle
        else:
            end = middle - 1
    return begin


def is_rejected(hits: int, samples: int, share: float, level: float) -> bool:
    """Whether the likelihood ratio of the uniform mixture of all shares to `share` has reached 1 / level. The integral of
    the binomial distribution over its share is 1 / (samples + 1)."""
    return -math.log(samples + 1) - log_binomial(hits, samples, share) >= -math.log(level)

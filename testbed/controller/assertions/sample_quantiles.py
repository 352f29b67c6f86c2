"""Assertions on delay, jitter and rate by quantiles, for which order statistics give a confidence interval that is
independent of the distribution (H. A. David and H. N. Nagaraja, "Order Statistics", 3rd edition, 2003, section 7.1).

The expected value must lie within the interval. The interval must be narrower than the deviation to detect; otherwise the
sample is refused. So a correct link fails once in a million runs (`LEVEL`). For a link that deviates by at least that much,
the assertion fails or refuses the sample, except once in a million runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal, get_args

from testbed.controller.assertions.shares import SampleTooSmallError, binomial_tail, check_deviation
from testbed.controller.verdict.statistics import LEVEL, MIN_DEVIATION
from testbed.spec.units import format_duration, format_rate, parse_duration, parse_rate

Distribution = Literal["uniform", "normal"]
_JITTER_SHARES: Final = (0.1, 0.9)
_BLOCKS: Final = 30
"""Number of blocks of a sample of arrivals, each of which has a rate."""


@dataclass(frozen=True, slots=True)
class ExpectedQuantile:
    """An expected quantile. name: for messages. share: 0..1. value: expected value. tolerance: deviation to detect, in
    the unit of the value. late: amount by which a correct value may be greater. format: formats a value for messages."""

    name: str
    share: float
    value: float
    tolerance: float
    late: float
    format: Callable[[float], str]

    def is_decided(self, low: float, high: float, samples: int) -> bool:
        """Whether a confidence interval of the quantile is narrow enough. Raises AssertionError if the expected value is not
        in it."""
        __tracebackhide__ = True
        if high < self.value or low > self.value + self.late:
            late = f", or up to {self.format(self.late)} more" if self.late else ""
            raise AssertionError(
                f"{self.name} is {self.format(low)} to {self.format(high)} by {samples:,} samples (level {LEVEL:g}); "
                f"expected {self.format(self.value)}{late}"
            )
        return high - low + self.late < self.tolerance

    def refusal(self, low: float, high: float, samples: int) -> SampleTooSmallError:
        """Return the error for an interval that is too wide."""
        return SampleTooSmallError(
            f"{samples:,} samples cannot show that {self.name} is off by {self.format(self.tolerance)}: it is "
            f"{self.format(low)} to {self.format(high)}"
            + (f", and {self.format(self.late)} more are allowed" if self.late else "")
            + ": take more samples, or samples with less variation"
        )


def assert_delay(asked: int | str, delays: Sequence[float], *, late: int | str = 0, off: float = MIN_DEVIATION) -> None:
    """Fail unless the median of these one-way delays, nanoseconds, is consistent with the configured delay.

    asked: configured delay, nanoseconds, or "5ms". late: time by which the machine may increase the median. Raises
    AssertionError; SampleTooSmallError if the sample cannot show a relative deviation of `off`; at least 21 samples are
    needed.
    """
    __tracebackhide__ = True
    _assert_quantiles(expected_delay(asked, late, off), delays)


def assert_jitter(
    asked: int | str,
    delays: Sequence[float],
    *,
    delay: int | str,
    distribution: Distribution = "uniform",
    late: int | str = 0,
    off: float = MIN_DEVIATION,
) -> None:
    """Fail unless the 10 % and 90 % quantiles of these one-way delays are consistent with this jitter around `delay`.

    asked: configured jitter: half the width of a uniform distribution, or the standard deviation of a normal one. Frames
    must be sent at intervals of at least twice the jitter, since order-keeping links delay closer frames. The other
    arguments and errors are those of `assert_delay`.
    """
    __tracebackhide__ = True
    _assert_quantiles(expected_jitter(asked, delay, distribution, late, off), delays)


def assert_rate(
    asked: int | str, arrivals: Sequence[tuple[int, int]], *, overhead: int = 0, off: float = MIN_DEVIATION
) -> None:
    """Fail unless queued frames arrive at this rate.

    asked: configured rate, bit/s, or "10mbit". arrivals: time in nanoseconds and bytes of each frame, in order. overhead:
    additional bytes of each frame that count towards the rate. The median rate of 30 blocks decides, so that a few late
    wake-ups have no effect.
    """
    __tracebackhide__ = True
    frames = max(1, (len(arrivals) - 1) // _BLOCKS)
    _assert_quantiles(expected_rate(asked, off), block_rates(arrivals, frames, overhead))


def expected_delay(asked: int | str, late: int | str, off: float) -> list[ExpectedQuantile]:
    """Return the expected quantile of a delay. Raises ValueError."""
    value = _positive(asked, "delay", parse_duration)
    check_deviation(off)
    return [
        ExpectedQuantile("the median delay", 0.5, value, off * value, _number(late, "late", parse_duration), _duration)
    ]


def expected_jitter(
    asked: int | str, delay: int | str, distribution: Distribution, late: int | str, off: float
) -> list[ExpectedQuantile]:
    """Return the expected quantiles of a jitter around a delay. No delay is below 0. Raises ValueError."""
    value, middle = _positive(asked, "jitter", parse_duration), _number(delay, "delay", parse_duration)
    check_deviation(off)
    if distribution not in (distributions := get_args(Distribution)):
        raise ValueError(f"the distribution must be {' or '.join(distributions)}, got {distribution!r}")
    allowed = _number(late, "late", parse_duration)
    quantiles = []
    for share in _JITTER_SHARES:
        offset = NormalDist().inv_cdf(share) if distribution == "normal" else 2 * share - 1  # in units of the jitter
        name = f"the {share:.0%} quantile of the delay"
        expected, tolerance = max(0.0, middle + value * offset), off * value * abs(offset)
        quantiles.append(ExpectedQuantile(name, share, expected, tolerance, allowed, _duration))
    return quantiles


def expected_rate(asked: int | str, off: float) -> list[ExpectedQuantile]:
    """Return the expected quantile of a rate. Raises ValueError."""
    value = _positive(asked, "rate", parse_rate)
    check_deviation(off)
    return [ExpectedQuantile("the median rate", 0.5, value, off * value, 0, lambda rate: format_rate(round(rate)))]


def block_rates(arrivals: Sequence[tuple[int, int]], frames: int, overhead: int = 0) -> list[float]:
    """Return the rate of each block of `frames` frames, bit/s. A block begins when the previous frame arrives. Raises
    ValueError for times that do not increase, and for a negative overhead."""
    if overhead < 0:
        raise ValueError(f"the overhead must be 0 bytes or more, got {overhead}")
    rates = []
    for begin in range(0, len(arrivals) - frames, frames):
        block = arrivals[begin : begin + frames + 1]
        duration = block[-1][0] - block[0][0]
        if duration <= 0:
            raise ValueError(
                f"{frames} frames arrived within {duration} ns: the clock is too coarse, or time goes backwards"
            )
        rates.append(sum(size + overhead for _, size in block[1:]) * 8e9 / duration)
    return rates


def rank_interval(samples: int, share: float, level: float = LEVEL) -> tuple[int, int] | None:
    """Return the ranks, from 1, of the two samples that bound the quantile at a confidence of 1 - level; None for too few
    samples. Exact, since the number of samples below a quantile is binomial."""
    low, high = _max_rank(samples, share, level / 2), _max_rank(samples, 1 - share, level / 2)
    return (low, samples + 1 - high) if low and high else None


def _max_rank(samples: int, share: float, level: float) -> int:
    """Return the greatest rank whose sample lies above the quantile with a probability of at most `level`; 0 if there is
    none."""
    begin, end = 0, math.floor(samples * share)
    while begin < end:
        middle = (begin + end + 1) // 2
        if binomial_tail(middle - 1, samples, share, -1) <= level:
            begin = middle
        else:
            end = middle - 1
    return begin


def _assert_quantiles(quantiles: Sequence[ExpectedQuantile], samples: Sequence[float]) -> None:
    __tracebackhide__ = True
    ordered = sorted(samples)
    check_samples(ordered)
    level = LEVEL / len(quantiles)
    refusal: SampleTooSmallError | None = None
    for quantile in quantiles:
        ranks = rank_interval(len(ordered), quantile.share, level)
        if ranks is None:
            refusal = SampleTooSmallError(
                f"{len(ordered):,} samples are too few for {quantile.name}: take "
                f"{min_samples(quantile.share, level):,} or more"
            )
            continue
        low, high = ordered[ranks[0] - 1], ordered[ranks[1] - 1]
        if not quantile.is_decided(low, high, len(ordered)):
            refusal = quantile.refusal(low, high, len(ordered))
    if refusal is not None:
        raise refusal


def check_samples(samples: Sequence[float]) -> None:
    """Check that samples can be ordered, and are not in seconds. Raises ValueError."""
    if not all(map(math.isfinite, samples)):
        raise ValueError("a sample is not a finite number: leave out frames that did not arrive")
    if any(samples) and all(abs(sample) < 1 for sample in samples):
        raise ValueError(f"all samples are below 1, such as {samples[-1]:g}: delays are in nanoseconds, rates in bit/s")


def min_samples(share: float, level: float = LEVEL) -> int:
    """Return the minimum number of samples for a confidence interval of a quantile."""
    return math.ceil(math.log(level / 2) / math.log(max(share, 1 - share)) - 1e-9)


def _number(value: int | str, quantity: str, parse: Callable[[object], int]) -> int:
    number = value if isinstance(value, int) else parse(value)
    if number < 0:
        raise ValueError(f"{quantity} must be 0 or more, got {value}")
    return number


def _positive(asked: int | str, quantity: str, parse: Callable[[object], int]) -> int:
    value = _number(asked, f"the {quantity}", parse)
    if value == 0:
        raise ValueError(f"the {quantity} must be above 0, since its deviation is relative; got {asked}")
    return value


def _duration(nanoseconds: float) -> str:
    """Format a duration with its sign: it is negative if two clocks differ."""
    rounded = round(nanoseconds)
    return f"{'-' if rounded < 0 else ''}{format_duration(abs(rounded))}"

"""Assertions on times: delay, jitter, rate. They look at quantiles, of which order statistics give an interval that holds
whatever the distribution is (H. A. David and H. N. Nagaraja, "Order Statistics", 3rd edition, 2003, section 7.1).

What is asked for must lie within the interval, and the interval be narrower than the deviation that is looked for, or the
sample is refused. So a sound link fails once in a million (`LEVEL`), and one that is off by the deviation or more is
either found or its sample refused, but for one case in a million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

from testbed.controller.assertions.shares import SampleTooSmallError, binomial_tail, check_deviation
from testbed.controller.verdict.statistics import COARSEST, LEVEL
from testbed.spec.units import format_duration, format_rate, parse_duration, parse_rate

Distribution = Literal["uniform", "normal"]
_JITTER_SHARES: Final = (0.1, 0.9)
_BLOCKS: Final = 30
"""Stretches of a sample of arrivals, each with a rate of its own."""


@dataclass(frozen=True, slots=True)
class ExpectedQuantile:
    """A quantile as asked for. share: 0..1. tolerance: the deviation that must be seen, in the value's unit. late: by how
    much a sound value may be greater. what, shown: how it and its values are called in messages."""

    what: str
    share: float
    value: float
    tolerance: float
    late: float
    shown: Callable[[float], str]

    def is_sure(self, low: float, high: float, samples: int) -> bool:
        """Whether an interval of the quantile is narrow enough. Raises AssertionError if what is asked for is not in it."""
        __tracebackhide__ = True
        if high < self.value or low > self.value + self.late:
            late = f", or up to {self.shown(self.late)} more" if self.late else ""
            raise AssertionError(
                f"{self.what} is {self.shown(low)} to {self.shown(high)} by {samples:,} samples (level {LEVEL:g}); expected "
                f"{self.shown(self.value)}{late}"
            )
        return high - low + self.late < self.tolerance

    def refusal(self, low: float, high: float, samples: int) -> SampleTooSmallError:
        """Make the error for an interval that is too wide."""
        return SampleTooSmallError(
            f"{samples:,} samples cannot show that {self.what} is off by {self.shown(self.tolerance)}: it is "
            f"{self.shown(low)} to {self.shown(high)}"
            + (f", and {self.shown(self.late)} more are allowed" if self.late else "")
            + ": take more, or steadier ones"
        )


def assert_delay(asked: int | str, delays: Sequence[float], *, late: int | str = 0, off: float = COARSEST) -> None:
    """Fail unless the median of these one-way delays, nanoseconds, is consistent with what was asked for.

    asked: nanoseconds, or "5ms". late: by how much the machine itself may make a sound median later. Raises
    AssertionError; SampleTooSmallError where a deviation of `off` could hide: 21 samples are the fewest.
    """
    __tracebackhide__ = True
    _assert_quantiles(asked_delay(asked, late, off), delays)


def assert_jitter(
    asked: int | str,
    delays: Sequence[float],
    *,
    delay: int | str,
    distribution: Distribution = "uniform",
    late: int | str = 0,
    off: float = COARSEST,
) -> None:
    """Fail unless the 10 % and 90 % quantiles of these one-way delays are consistent with this jitter around `delay`.

    asked: as the description has it: half the width of a uniform distribution, the standard deviation of a normal one.
    Frames stand apart by twice the jitter, or those that keep their order wait for others. The rest as for
    `assert_delay`.
    """
    __tracebackhide__ = True
    _assert_quantiles(asked_jitter(asked, delay, distribution, late, off), delays)


def assert_rate(
    asked: int | str, arrivals: Sequence[tuple[int, int]], *, overhead: int = 0, off: float = COARSEST
) -> None:
    """Fail unless frames that waited for one another arrive at this rate.

    asked: bit/s, or "10mbit". arrivals: time in nanoseconds and bytes of each frame, in order. overhead: bytes that a frame
    takes of the rate beside its own. The median rate of 30 stretches decides, so that a few late wake-ups do not.
    """
    __tracebackhide__ = True
    frames = max(1, (len(arrivals) - 1) // _BLOCKS)
    _assert_quantiles(asked_rate(asked, off), block_rates(arrivals, frames, overhead))


def asked_delay(asked: int | str, late: int | str, off: float) -> list[ExpectedQuantile]:
    """Make the quantile of a delay. Raises ValueError."""
    value = _positive(asked, "delay", parse_duration)
    check_deviation(off)
    return [ExpectedQuantile("the median delay", 0.5, value, off * value, _number(late, parse_duration), _duration)]


def asked_jitter(
    asked: int | str, delay: int | str, distribution: Distribution, late: int | str, off: float
) -> list[ExpectedQuantile]:
    """Make the quantiles of a jitter around a delay. Raises ValueError."""
    value, middle = _positive(asked, "jitter", parse_duration), _number(delay, parse_duration)
    check_deviation(off)
    quantiles = []
    for share in _JITTER_SHARES:
        place = NormalDist().inv_cdf(share) if distribution == "normal" else 2 * share - 1
        what = f"the {share:.0%} quantile of the delay"
        tolerance, allowed = off * value * abs(place), _number(late, parse_duration)
        quantiles.append(ExpectedQuantile(what, share, middle + value * place, tolerance, allowed, _duration))
    return quantiles


def asked_rate(asked: int | str, off: float) -> list[ExpectedQuantile]:
    """Make the quantile of a rate. Raises ValueError."""
    value = _positive(asked, "rate", parse_rate)
    check_deviation(off)
    return [ExpectedQuantile("the median rate", 0.5, value, off * value, 0, lambda rate: format_rate(round(rate)))]


def block_rates(arrivals: Sequence[tuple[int, int]], frames: int, overhead: int = 0) -> list[float]:
    """Return the rate, bit/s, of each stretch of so many frames. A stretch begins when the frame before it arrives."""
    rates = []
    for begin in range(0, len(arrivals) - frames, frames):
        stretch = arrivals[begin : begin + frames + 1]
        taken = stretch[-1][0] - stretch[0][0]
        if taken <= 0:
            raise ValueError(
                f"{frames} frames arrived within {taken} ns: the clock is too coarse, or time goes backwards"
            )
        rates.append(sum(size + overhead for _, size in stretch[1:]) * 8e9 / taken)
    return rates


def rank_interval(samples: int, share: float, level: float = LEVEL) -> tuple[int, int] | None:
    """Return the ranks, from 1, of the two samples between which the quantile lies but for that level; None if there are
    too few samples. Exact: the number of samples below a quantile is binomial."""
    low, high = _last(samples, share, level / 2), _last(samples, 1 - share, level / 2)
    return (low, samples + 1 - high) if low and high else None


def _last(samples: int, share: float, level: float) -> int:
    """Return the greatest rank that at most `level` of all samples have above the quantile of that share; 0: none."""
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
    level = LEVEL / len(quantiles)
    unsure: SampleTooSmallError | None = None
    for quantile in quantiles:
        ranks = rank_interval(len(ordered), quantile.share, level)
        if ranks is None:
            unsure = SampleTooSmallError(
                f"{len(ordered):,} samples are too few for {quantile.what}: take {fewest(quantile.share, level):,} or more"
            )
            continue
        low, high = ordered[ranks[0] - 1], ordered[ranks[1] - 1]
        if not quantile.is_sure(low, high, len(ordered)):
            unsure = quantile.refusal(low, high, len(ordered))
    if unsure is not None:
        raise unsure


def fewest(share: float, level: float = LEVEL) -> int:
    """Return the fewest samples that give an interval of a quantile at all."""
    return math.ceil(math.log(level / 2) / math.log(max(share, 1 - share)) - 1e-9)


def _number(value: int | str, parse: Callable[[object], int]) -> int:
    return value if isinstance(value, int) else parse(value)


def _positive(asked: int | str, what: str, parse: Callable[[object], int]) -> int:
    value = _number(asked, parse)
    if value <= 0:
        raise ValueError(f"a {what} of {asked}: there is no part of it to be off by; it is above 0")
    return value


def _duration(nanoseconds: float) -> str:
    return format_duration(round(nanoseconds))

"""Expected results of probing a direction that behaves as configured.

The expectation is computed from the impairment alone, never from the datapath's own counters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from testbed.controller.probing.probe_frames import MIN_SIZE
from testbed.controller.verdict import statistics
from testbed.fabric.line import BITS
from testbed.fabric.wire_time import default_queue, wire_size
from testbed.fates.jitter import SCALE, normal_table, pareto_table, parse_table, parse_trace
from testbed.fates.loss_models import long_run_loss
from testbed.spec.layout import Impairment
from testbed.spec.losses import parse_pattern

_POINTS: Final = 4096  # quantiles of a uniform distribution


@dataclass(frozen=True, slots=True)
class Chance:
    """An expected share of frames. inflation: see `statistics.burst_inflation`. unpredictable: reason why the share cannot
    be predicted, or empty."""

    share: float = 0.0
    inflation: float = 1.0
    unpredictable: str = ""

    @property
    def min_probes(self) -> int:
        """Number of probes that detect a deviation of 20 %; 0 for a share of 0 or 1, or an unpredictable one."""
        if self.unpredictable or self.share in (0.0, 1.0):
            return 0
        return statistics.required_samples(self.share, self.share * (1 - self.share) * self.inflation)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected delay, loss and rate of isolated probes of the minimum size.

    delays: quantiles of the one-way delay in nanoseconds, ascending; a single value without jitter. delay_unpredictable,
    rate_unpredictable: reason why the delay or the rate cannot be predicted, or empty. rate: bit/s, 0: unlimited. queue:
    bytes, 0: unlimited. skip_below: nanoseconds; a frame with a shorter delay was reordered, that is, it skipped the delay.
    0 without reordering.
    """

    delays: tuple[int, ...]
    loss: Chance
    corrupt: Chance
    duplicate: Chance
    reorder: Chance
    rate: int = 0
    queue: int = 0
    skip_below: int = 0
    delay_unpredictable: str = ""
    rate_unpredictable: str = ""

    def delay(self, share: float) -> int:
        """Return the `share` quantile of the delay, nanoseconds; 0 and 1 give the shortest and longest delay."""
        if share <= 0:
            return self.delays[0]
        return self.delays[-1] if share >= 1 else statistics.quantile(self.delays, share)

    @property
    def range(self) -> int:
        """Difference of the longest and shortest delay, nanoseconds. Where order is kept, frames sent at shorter intervals
        delay each other."""
        return self.delays[-1] - self.delays[0]

    @property
    def spread(self) -> int:
        """Interquartile range of the delay, nanoseconds."""
        return self.delay(0.75) - self.delay(0.25)


def expect(impairment: Impairment, texts: Mapping[str, str], *, bucket: bool = False) -> Expectation:
    """Compute the expectation for an impairment. texts: path -> text of the readable files that it names. bucket: the rate
    is enforced by a token bucket, through which an isolated frame passes at once. Fault rules are not considered."""
    frame_time = 0
    if impairment.rate and not bucket:
        frame_time = wire_size(impairment, MIN_SIZE) * BITS // impairment.rate
    delays, delay_unpredictable = _expected_delays(impairment, texts)
    delays = tuple(delay + frame_time for delay in delays)
    if impairment.rate_trace:
        delay_unpredictable = delay_unpredictable or "the times of a rate trace decide when frames pass"
    reorder = Chance(impairment.reorder)
    skip_below = 0
    if impairment.reorder:
        skip_below = (frame_time + delays[0]) // 2
        if delays[0] - frame_time < 100_000:
            reorder = Chance(
                impairment.reorder, unpredictable="a delay below 0.1 ms is hardly distinguishable from no delay"
            )
    return Expectation(
        delays,
        _expected_loss(impairment),
        Chance(impairment.corrupt),
        Chance(impairment.duplicate),
        reorder,
        impairment.rate,
        _queue_size(impairment),
        skip_below,
        delay_unpredictable,
        "the rate of a trace varies" if impairment.rate_trace else "",
    )


def _expected_delays(impairment: Impairment, texts: Mapping[str, str]) -> tuple[tuple[int, ...], str]:
    delay, jitter, path = impairment.delay, impairment.jitter, impairment.jitter_file
    if path and path not in texts:
        return (delay,), f"{path} cannot be read"
    if impairment.distribution == "trace":
        steps = parse_trace(texts[path], path)
        return tuple(
            sorted(delay + step for step in steps)
        ), "a trace gives each frame the next delay, including other traffic"
    if not jitter:
        return (delay,), ""
    if impairment.distribution in ("", "uniform"):
        deviations = _uniform_deviations(jitter)
    else:
        deviations = tuple((jitter * value + SCALE // 2) // SCALE for value in _jitter_table(impairment, texts))
    return tuple(max(0, delay + deviation) for deviation in deviations), ""


def _jitter_table(impairment: Impairment, texts: Mapping[str, str]) -> tuple[int, ...]:
    match impairment.distribution:
        case "normal":
            return normal_table()
        case "pareto":
            return pareto_table()
        case _:
            return tuple(sorted(parse_table(texts[impairment.jitter_file], impairment.jitter_file)))


@lru_cache(maxsize=64)
def _uniform_deviations(jitter: int) -> tuple[int, ...]:
    last = _POINTS - 1
    return tuple(round((2 * index / last - 1) * jitter) for index in range(_POINTS))


def _expected_loss(impairment: Impairment) -> Chance:
    lost, inflation = impairment.loss, 1.0
    if impairment.gemodel:
        lost += (1 - lost) * long_run_loss(impairment.gemodel)
        inflation = statistics.burst_inflation(impairment.gemodel)
        p, r, *_ = impairment.gemodel
        if p + r < 1e-4:
            return Chance(lost, inflation, "the Gilbert-Elliott states hardly ever change")
    if impairment.loss_pattern:
        numbers, period = parse_pattern(impairment.loss_pattern)
        if not period:
            return Chance(lost, inflation, "a loss pattern without a period loses only frames of certain numbers")
        lost += (1 - lost) * len(numbers) / period
    return Chance(lost, inflation)


def _queue_size(impairment: Impairment) -> int:
    """Return the queue's size in bytes of probes."""
    if impairment.queue_frames:
        return impairment.queue_frames * MIN_SIZE
    if impairment.queue:
        return impairment.queue
    return default_queue(impairment.rate, impairment.delay + impairment.jitter) if impairment.rate else 0


def probes_needed(expectation: Expectation) -> int:
    """Return the number of probes that are enough for all findings on shares; 0 if all shares are 0 or 1, or
    unpredictable."""
    chances = (expectation.loss, expectation.corrupt, expectation.duplicate, expectation.reorder)
    return max(chance.min_probes for chance in chances)


def min_jitter_samples() -> int:
    """Return the number of delays that determine a distribution to within 0.05."""
    return math.ceil(-math.log(statistics.LEVEL / 2) / 2 / 0.05**2)

"""Expected results of probing a direction that behaves as configured.

The expectation is computed from the impairment alone, never from the datapath's own counters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from testbed.controller.probing.probe_frames import SMALLEST
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
    """A share of frames. inflation: see `statistics.burst_inflation`. unpredictable: why it cannot be predicted,
    or empty."""

    share: float = 0.0
    inflation: float = 1.0
    unpredictable: str = ""

    @property
    def enough(self) -> int:
        """Number of probes that show a deviation of 20 %; 0 where the share is 0 or 1."""
        if self.unpredictable or self.share in (0.0, 1.0):
            return 0
        return statistics.enough_for(self.share, self.share * (1 - self.share) * self.inflation)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected delay, loss and rate of isolated probes of the smallest size.

    delays: quantiles of the one-way delay in nanoseconds, rising; a single value without jitter. delay_unpredictable,
    rate_unpredictable: why it cannot be predicted, or empty. rate: bit/s, 0 for unlimited. queue: its size in bytes, 0 for
    unlimited. skip_below: a frame with a shorter delay has skipped it (reordering); 0 without reordering.
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
        """Return a quantile of the delay, 0 and 1 included."""
        if share <= 0:
            return self.delays[0]
        return self.delays[-1] if share >= 1 else statistics.quantile(self.delays, share)

    @property
    def range(self) -> int:
        """Nanoseconds from the shortest to the longest delay: frames closer than this hold each other up where order is
        kept."""
        return self.delays[-1] - self.delays[0]

    @property
    def spread(self) -> int:
        """Interquartile range of the delay, nanoseconds."""
        return self.delay(0.75) - self.delay(0.25)


def expect(impairment: Impairment, texts: Mapping[str, str], *, bucket: bool = False) -> Expectation:
    """Compute the expectation for an impairment. texts: path -> text of the files that it names, as far as they can be
    read. bucket: the rate is a token bucket's, which lets an isolated frame pass at once. Fault rules are not
    considered."""
    on_wire = 0
    if impairment.rate and not bucket:
        on_wire = wire_size(impairment, SMALLEST) * BITS // impairment.rate
    delays, delay_unpredictable = _delays(impairment, texts)
    delays = tuple(delay + on_wire for delay in delays)
    if impairment.rate_trace:
        delay_unpredictable = delay_unpredictable or "a trace lets frames pass at its own times"
    reorder = Chance(impairment.reorder)
    skip_below = 0
    if impairment.reorder:
        skip_below = (on_wire + delays[0]) // 2
        if delays[0] - on_wire < 100_000:
            reorder = Chance(
                impairment.reorder, unpredictable="a delay below 0.1 ms is hardly distinguishable from none"
            )
    return Expectation(
        delays,
        _loss(impairment),
        Chance(impairment.corrupt),
        Chance(impairment.duplicate),
        reorder,
        impairment.rate,
        _queue(impairment),
        skip_below,
        delay_unpredictable,
        "a trace's rate is another at every time" if impairment.rate_trace else "",
    )


def _delays(impairment: Impairment, texts: Mapping[str, str]) -> tuple[tuple[int, ...], str]:
    delay, jitter, path = impairment.delay, impairment.jitter, impairment.jitter_file
    if path and path not in texts:
        return (delay,), f"{path} cannot be read"
    if impairment.distribution == "trace":
        steps = parse_trace(texts[path], path)
        return tuple(sorted(delay + step for step in steps)), "a trace gives each frame the next delay, probes or not"
    if not jitter:
        return (delay,), ""
    if impairment.distribution in ("", "uniform"):
        deviations = _uniform(jitter)
    else:
        deviations = tuple((jitter * value + SCALE // 2) // SCALE for value in _table(impairment, texts))
    return tuple(max(0, delay + deviation) for deviation in deviations), ""


def _table(impairment: Impairment, texts: Mapping[str, str]) -> tuple[int, ...]:
    match impairment.distribution:
        case "normal":
            return normal_table()
        case "pareto":
            return pareto_table()
        case _:
            return tuple(sorted(parse_table(texts[impairment.jitter_file], impairment.jitter_file)))


@lru_cache(maxsize=64)
def _uniform(jitter: int) -> tuple[int, ...]:
    last = _POINTS - 1
    return tuple(round((2 * place / last - 1) * jitter) for place in range(_POINTS))


def _loss(impairment: Impairment) -> Chance:
    lost, inflation = impairment.loss, 1.0
    if impairment.gemodel:
        lost += (1 - lost) * long_run_loss(impairment.gemodel)
        inflation = statistics.burst_inflation(impairment.gemodel)
        p, r, *_ = impairment.gemodel
        if p + r < 1e-4:
            return Chance(lost, inflation, "Gilbert-Elliott's states hardly ever change")
    if impairment.loss_pattern:
        numbers, period = parse_pattern(impairment.loss_pattern)
        if not period:
            return Chance(lost, inflation, "a pattern that does not repeat loses frames of certain numbers only")
        lost += (1 - lost) * len(numbers) / period
    return Chance(lost, inflation)


def _queue(impairment: Impairment) -> int:
    """Return the bytes of probes that may wait."""
    if impairment.queue_frames:
        return impairment.queue_frames * SMALLEST
    if impairment.queue:
        return impairment.queue
    return default_queue(impairment.rate, impairment.delay + impairment.jitter) if impairment.rate else 0


def probes_needed(expectation: Expectation) -> int:
    """Return how many probes decide all findings that depend on chance."""
    chances = (expectation.loss, expectation.corrupt, expectation.duplicate, expectation.reorder)
    return max(chance.enough for chance in chances)


def jitter_samples() -> int:
    """Return how many delays show the distribution to within 0.05."""
    return math.ceil(-math.log(statistics.LEVEL / 2) / 2 / 0.05**2)

"""Plan for probing a direction: interval, burst, duration, and the train that measures its rate.

Probes must hardly disturb other traffic: they are in total at most `MAX_PACE` frames/s, and at most a tenth of a
direction's rate. The interval of timed probes exceeds the range of the jitter: where order is kept, closer frames delay
each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from testbed.controller.probing.expectations import Expectation, min_jitter_samples, probes_needed
from testbed.controller.probing.probe_frames import MIN_SIZE
from testbed.fabric.wire_time import wire_size
from testbed.spec.layout import Impairment

MAX_PACE: Final = 6_000
"""Frames/s, of all directions together."""

MIN_SECONDS: Final = 2.0
MAX_SECONDS: Final = 20.0
"""Limits of the default duration of probing."""

_MIN_INTERVAL: Final = 1_000_000  # ns between timed probes
_MIN_SAMPLES: Final = 200  # timed probes: twice as many as a 99th percentile needs
_MAX_BURST: Final = 256  # frames
_MIN_RATE_RATIO: Final = 10  # a direction's rate over the rate of its probes
_SECOND: Final = 1_000_000_000
_MIN_TRAIN_SECONDS: Final = 0.2
_MAX_TRAIN_SECONDS: Final = 4.0
_MIN_TRAIN_FRAMES: Final = 100
_MAX_TRAIN_FRAMES: Final = 40_000
_TRAIN_OVERLOAD: Final = 1.3  # the train's rate over the configured rate

MARGIN: Final = 1.05
"""Multiple of a required rate or number of probes that is sent, to be sure of it."""


@dataclass(frozen=True, slots=True)
class Train:
    """A train of frames, sent faster than the direction's rate. count: number of frames. size: bytes of each. duration:
    nanoseconds. bits: bits of a frame on the wire. min_offered: bit/s at which the train must have been sent to show that
    the link limits it."""

    count: int
    size: int
    duration: int
    bits: int
    min_offered: float


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Probes of a direction: bursts of `burst` probes every `interval` nanoseconds, the first of which is timed. max_delay:
    longest expected delay, nanoseconds. skip_below: see `Expectation`. min_probes, min_samples: number of probes, and of
    timed probes, that decide all findings. train: measures the rate, or None; no_train: reason why there is none."""

    interval: int
    burst: int
    max_delay: int
    skip_below: int = 0
    min_probes: int = 0
    min_samples: int = 0
    train: Train | None = None
    no_train: str = ""


def plan_for(impairment: Impairment, expectation: Expectation, paths: int, mtu: int) -> ProbePlan:
    """Plan the probes of a direction. paths: number of directions that are probed at the same time. mtu: bytes."""
    pace = MAX_PACE / paths
    if impairment.rate:
        pace = min(pace, impairment.rate / (8 * wire_size(impairment, MIN_SIZE)) / _MIN_RATE_RATIO)
    min_probes = probes_needed(expectation)
    interval = max(_MIN_INTERVAL, expectation.range, math.ceil(_SECOND / pace))
    burst = 1
    if min_probes:
        burst = max(1, min(_MAX_BURST, int(pace * interval / _SECOND)))
        if expectation.queue:
            burst = max(1, min(burst, expectation.queue // (2 * MIN_SIZE)))
    train, no_train = None, expectation.rate_unpredictable
    if impairment.rate:
        train, no_train = _plan_train(impairment, expectation, mtu)
    min_samples = _MIN_SAMPLES
    if expectation.range and not expectation.delay_unpredictable:
        min_samples = min_jitter_samples()
    return ProbePlan(
        interval, burst, expectation.delays[-1], expectation.skip_below, min_probes, min_samples, train, no_train
    )  # fmt: skip


def _plan_train(impairment: Impairment, expectation: Expectation, mtu: int) -> tuple[Train | None, str]:
    """Plan the train, or return the reason why there is none. Lost frames take no time on the wire, so correspondingly more
    are sent. The queue may overflow: a full queue keeps the link busy."""
    passed = 1 - expectation.loss.share
    if passed < 0.05:
        return None, "nearly all frames are lost before they take time on the wire"
    size = mtu + 14
    max_size = int(impairment.rate * _MAX_TRAIN_SECONDS / 8 / _MIN_TRAIN_FRAMES)
    size = max(MIN_SIZE, min(size, max_size))
    bits = 8 * wire_size(impairment, size)
    seconds = max(_MIN_TRAIN_SECONDS, _MIN_TRAIN_FRAMES * bits / impairment.rate, 20 * expectation.range / _SECOND)
    if seconds > 2 * _MAX_TRAIN_SECONDS:
        return None, f"a train of {_MIN_TRAIN_FRAMES} frames would take {seconds:.0f} s"
    count = math.ceil(seconds * impairment.rate * _TRAIN_OVERLOAD / passed / bits)
    if count > _MAX_TRAIN_FRAMES:
        return None, f"probes cannot fill a rate of {impairment.rate / 1e9:g} Gbit/s"
    return Train(count, size, round(seconds * _SECOND), bits, MARGIN * impairment.rate / passed), ""

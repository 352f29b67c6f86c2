"""Plan for probing a direction: interval, burst, duration, and the train that measures its rate.

Probes are to disturb little: all together send at most `PACE` frames/s, and at most a tenth of a direction's rate.
Frames whose delay is measured are further apart than jitter can move them, otherwise order would hold them up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from testbed.controller.probing.expectations import Expectation, jitter_samples, probes_needed
from testbed.controller.probing.probe_frames import SMALLEST
from testbed.fabric.wire_time import wire_size
from testbed.spec.layout import Impairment

PACE: Final = 6_000
"""Frames/s, of all directions together."""

SHORTEST: Final = 2.0
LONGEST: Final = 20.0
"""Seconds of probing where no time is given."""

_INTERVAL: Final = 1_000_000  # ns, at least, between two probes whose delay is measured
_SAMPLES: Final = 200  # timed probes, at least: twice those that a 99th percentile needs
_BURST: Final = 256  # frames, at most
_LOAD: Final = 10  # a direction's rate over that of its probes, at least
_SECOND: Final = 1_000_000_000
_TRAIN_SECONDS: Final = 0.2
_LONGEST_TRAIN: Final = 4.0
_TRAIN_FRAMES: Final = 100
_MAX_TRAIN_FRAMES: Final = 40_000
_ABOVE: Final = 1.3  # the train's rate over the asked one

ENOUGH: Final = 1.05
"""Multiple of the rate that a train must have offered to show that no more passes."""


@dataclass(frozen=True, slots=True)
class Train:
    """A train of frames above the rate. count: frames. size: bytes of each. duration: nanoseconds. bits: what a frame
    takes of the rate. enough: bit/s that must have been offered."""

    count: int
    size: int
    duration: int
    bits: int
    enough: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Probes of a direction: `burst` probes every `interval` nanoseconds, the first of which is timed. latest: the
    longest configured delay, nanoseconds. skip_below: see `Expectation`. wanted, samples: how many probes, and how many
    timed ones, decide everything. train: for the rate, or None; no_train: why there is none."""

    interval: int
    burst: int
    latest: int
    skip_below: int = 0
    wanted: int = 0
    samples: int = 0
    train: Train | None = None
    no_train: str = ""


def plan_for(impairment: Impairment, expectation: Expectation, paths: int, mtu: int) -> Plan:
    """Plan the probes of a direction. ways: how many directions are probed at once. mtu: of the direction, bytes."""
    pace = PACE / paths
    if impairment.rate:
        pace = min(pace, impairment.rate / (8 * wire_size(impairment, SMALLEST)) / _LOAD)
    wanted = probes_needed(expectation)
    interval = max(_INTERVAL, expectation.range, math.ceil(_SECOND / pace))
    burst = 1
    if wanted:
        burst = max(1, min(_BURST, int(pace * interval / _SECOND)))
        if expectation.queue:
            burst = max(1, min(burst, expectation.queue // (2 * SMALLEST)))
    train, no_train = None, expectation.rate_unpredictable
    if impairment.rate:
        train, no_train = _train(impairment, expectation, mtu)
    samples = jitter_samples() if expectation.range and not expectation.delay_unpredictable else _SAMPLES
    return Plan(
        interval, burst, expectation.delays[-1], expectation.skip_below, wanted, samples, train, no_train
    )  # fmt: skip


def _train(impairment: Impairment, expectation: Expectation, mtu: int) -> tuple[Train | None, str]:
    """Plan the train. Lost frames take no time on the wire, so more are sent. The queue may overflow: it stays full."""
    passed = 1 - expectation.loss.share
    if passed < 0.05:
        return None, "nearly everything is lost before it takes time on the wire"
    size = mtu + 14
    fits = int(impairment.rate * _LONGEST_TRAIN / 8 / _TRAIN_FRAMES)
    size = max(SMALLEST, min(size, fits))
    bits = 8 * wire_size(impairment, size)
    seconds = max(_TRAIN_SECONDS, _TRAIN_FRAMES * bits / impairment.rate, 20 * expectation.range / _SECOND)
    if seconds > 2 * _LONGEST_TRAIN:
        return None, f"{_TRAIN_FRAMES} frames would take {seconds:.0f} s"
    count = math.ceil(seconds * impairment.rate * _ABOVE / passed / bits)
    if count > _MAX_TRAIN_FRAMES:
        return None, f"{impairment.rate / 1e9:g} Gbit/s is more than the probes can fill"
    return Train(count, size, round(seconds * _SECOND), bits, ENOUGH * impairment.rate / passed), ""

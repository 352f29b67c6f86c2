"""netem's timed behaviour: rate, cells and jitter, by the times at which frames arrive.

The timers of an emulated machine are late, never early: netem releases no frame before it is due. So the time of a series
of frames has an exact lower bound, and an upper bound that allows for late timers and still detects an error of a fifth.
For that, series and jitter last seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.controller.assertions.sample_quantiles import Distribution, assert_jitter
from testbed.fabric.wire_time import wire_size
from testbed.kernel import netem
from testbed.spec.layout import Impairment
from tests.vm.spliced_link import MTU, SLOW, SplicedLink, spliced

pytestmark = pytest.mark.requires("vm", "root", "ip")

MS = 10**6
SECOND = 10**9
FRAME = 60
FRAMES = round(50 * SLOW)
DELAY = 4 * SECOND
JITTERS: dict[Distribution, int] = {"uniform": 2 * SECOND, "normal": SECOND}
JITTERED_FRAMES = 2000
MAX_LATENESS = round(150 * MS * SLOW)
"""Maximum lateness of the machine's timers, ns."""


@pytest.fixture
def splice() -> Iterator[SplicedLink]:
    with spliced() as qdisc:
        yield qdisc


def options(impairment: Impairment) -> netem.Options:
    return netem.options_of(impairment, mtu=MTU, seed=1)


SHAPES = {
    "rate": Impairment(rate=10_000),
    "cells": Impairment(rate=20_000, overhead=8, cell_size=48, cell_overhead=5),
    "minimum frame and overhead": Impairment(rate=15_000, minimum_frame=64, overhead=20),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_series_of_frames_takes_its_time_at_the_rate(splice: SplicedLink, shape: str) -> None:
    """Each frame takes 40 to 50 ms, the series some seconds, a fifth of which exceeds the machine's lateness."""
    impairment = SHAPES[shape]
    splice.set(options(impairment))
    send_times = splice.offer(FRAMES)
    arrivals = splice.arrivals()
    assert [number for _, number in arrivals] == list(range(1, FRAMES + 1))
    requested = FRAMES * wire_size(impairment, FRAME) * 8 * SECOND // impairment.rate
    elapsed = arrivals[-1][0] - send_times[0]
    assert requested - MS <= elapsed <= requested * 1.15


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_a_jitter_has_the_configured_width(splice: SplicedLink, distribution: Distribution) -> None:
    """The frames are in flight together, each with its own delay. Half of the jitter exceeds the machine's lateness."""
    jitter = JITTERS[distribution]
    splice.set(options(Impairment(delay=DELAY, jitter=jitter, distribution=distribution)))
    sent = dict(enumerate(splice.offer(JITTERED_FRAMES), 1))
    arrivals = splice.arrivals()
    assert {number for _, number in arrivals} == sent.keys()
    delays = [time - sent[number] for time, number in arrivals]
    assert min(delays) >= DELAY - jitter * (1 if distribution == "uniform" else 4)
    assert_jitter(jitter, delays, delay=DELAY, distribution=distribution, late=MAX_LATENESS, off=0.6)
    for factor in (0.5, 1.5):
        with pytest.raises(AssertionError, match="quantile of the delay"):
            assert_jitter(
                round(factor * jitter), delays, delay=DELAY, distribution=distribution, late=MAX_LATENESS, off=0.6
            )

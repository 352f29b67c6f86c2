"""netem's timed behaviour: rate, cells and jitter, by the times at which frames arrive.

The clock of an emulated machine is coarse and late, and never early: a frame that netem holds comes no sooner than it is
due. So a series of frames has an exact lower bound, and an upper one that is far enough for the machine and closer than a
deviation of a fifth. Spans are seconds long to make it so; quantiles of a jitter of seconds likewise.
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
JITTERY = 2000
LATE = round(150 * MS * SLOW)
"""By how much the machine may be late."""


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
def test_frames_take_their_time_at_the_rate_and_no_other(splice: SplicedLink, shape: str) -> None:
    """Frames of 40 to 50 ms each, some seconds in all: a fifth more or less is more than the machine is late."""
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
    """The frames are in flight together, each with its own delay. Half of a jitter of seconds is more than the machine
    is late."""
    jitter = JITTERS[distribution]
    splice.set(options(Impairment(delay=DELAY, jitter=jitter, distribution=distribution)))
    sent = dict(enumerate(splice.offer(JITTERY), 1))
    arrivals = splice.arrivals()
    assert {number for _, number in arrivals} == sent.keys()
    delays = [time - sent[number] for time, number in arrivals]
    assert min(delays) >= DELAY - jitter * (1 if distribution == "uniform" else 4)
    assert_jitter(jitter, delays, delay=DELAY, distribution=distribution, late=LATE, off=0.6)
    for factor in (0.5, 1.5):
        with pytest.raises(AssertionError, match="quantile of the delay"):
            assert_jitter(round(factor * jitter), delays, delay=DELAY, distribution=distribution, late=LATE, off=0.6)

"""Keys of a frame's size on the wire need a rate, and jitter that keeps the order raises the mean delay."""

from __future__ import annotations

import pytest

from testbed import Cluster
from testbed.errors import DescriptionError
from testbed.fabric.direction import LinkDirection
from testbed.fates.stage import FateOptions
from testbed.spec.layout import Impairment
from testbed.spec.resolver import resolve

JITTER = 1_000_000
FRAME = bytes(12) + b"\x88\xb7" + bytes(50)


@pytest.mark.parametrize("key", ["minimum_frame", "overhead", "cell_size"])
def test_a_key_of_the_size_on_the_wire_without_a_rate_is_rejected(key: str) -> None:
    with pytest.raises(DescriptionError, match=rf"{key}: found {key} without a rate, expected a rate as well"):
        resolve(Cluster.star(2, **{key: 48}))
    for rate in ("1gbit", "unlimited"):
        resolve(Cluster.star(2, rate=rate, **{key: 48}))


@pytest.mark.parametrize(
    ("gap_in_jitters", "extra_delay"), [(2, 0.0), (1, 0.04), (0.5, 0.16), (0.1, 0.52), (0.01, 0.83)]
)
def test_jitter_raises_the_mean_delay_of_frames_that_are_closer_than_it(
    gap_in_jitters: float, extra_delay: float
) -> None:
    """Figures of docs/concepts/fates.md, in units of the jitter."""
    count, gap = 40_000 if gap_in_jitters < 0.1 else 4_000, round(gap_in_jitters * JITTER)
    wire = LinkDirection("a--b", "forward", Impairment(delay=5 * JITTER, jitter=JITTER), FateOptions(seed=1))
    arrivals = []

    def deliver_until(end: int) -> None:
        while wire.deadline is not None and wire.deadline <= end:
            now = wire.deadline
            arrivals.extend([now] * len(list(wire.poll(now))))

    for number in range(count):
        deliver_until(number * gap)
        wire.offer(number * gap, FRAME)
    deliver_until(1 << 62)
    assert len(arrivals) == count
    mean = sum(arrival - number * gap for number, arrival in enumerate(arrivals)) / count
    assert mean / JITTER - 5 == pytest.approx(extra_delay, abs=0.015)

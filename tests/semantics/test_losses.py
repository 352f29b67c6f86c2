"""Losses at the configured rate, in the configured bursts and by pattern; where the table says so, those of the model."""

from __future__ import annotations

import math
import statistics
from itertools import groupby, pairwise

from testbed.spec.layout import Impairment
from tests.semantics.datapaths import Line
from tests.semantics.impairment_checks import check_fates, marks_of, on, paced
from tests.unit.fates.statistical_checks import check_mean, check_share

COUNT = 4_000


def fates(line: Line, count: int = COUNT) -> list[bool]:
    """Send `count` frames and return for each whether it was lost; check that the others keep their order."""
    run = line.carry(paced(count))
    check_fates(line, run)
    arrived = marks_of(run.frames)
    assert arrived == sorted(set(arrived))
    arrived_numbers = set(arrived)
    return [index not in arrived_numbers for index in range(count)]


@on(Impairment(loss=0.3), also=["repeatable fates"])
def test_frames_are_lost_independently_at_the_configured_rate(line: Line) -> None:
    is_lost = fates(line)
    check_share(sum(is_lost), COUNT, 0.3, "frames lost")
    # If losses are independent, a frame after a loss is lost as often as any other.
    after = [is_next_lost for first, is_next_lost in pairwise(is_lost) if first]
    assert abs(statistics.fmean(after) - 0.3) <= 4.892 * math.sqrt(0.3 * 0.7 / len(after))


@on(Impairment(loss=1.0))
def test_all_frames_are_lost(line: Line) -> None:
    assert line.carry(paced(200)).arrived == []


@on(Impairment(gemodel=(0.3, 0.5, 1.0, 0.0)))
def test_bursts_and_gaps_have_the_mean_lengths_of_the_gilbert_elliott_states(line: Line) -> None:
    runs = [(is_lost, len(list(group))) for is_lost, group in groupby(fates(line, 6_000))][1:-1]
    for is_lost, parameter, quantity in ((True, 0.5, "bursts"), (False, 0.3, "gaps")):
        lengths = [length for run_is_lost, length in runs if run_is_lost is is_lost]
        # Lengths are geometric: mean 1 / parameter, variance (1 - parameter) / parameter^2.
        error = math.sqrt(1 - parameter) / parameter / math.sqrt(len(lengths))
        check_mean(statistics.fmean(lengths), 1 / parameter, error, f"mean length of {quantity}")


@on(Impairment(gemodel=(0.3, 0.5, 0.9, 0.1)))
def test_each_gilbert_elliott_state_has_its_loss_probability(line: Line) -> None:
    is_lost = fates(line, 5_000)
    # Frames a hundred apart are nearly independent: the interval is that of the means of parts of the sample.
    shares = [statistics.fmean(is_lost[start : start + 100]) for start in range(0, 5_000, 100)]
    requested = (0.3 * 0.9 + 0.5 * 0.1) / 0.8
    check_mean(statistics.fmean(shares), requested, statistics.stdev(shares) / math.sqrt(len(shares)), "frames lost")


@on(Impairment(loss_pattern="5, 12, 24 every 30"))
def test_the_frames_of_a_pattern_are_lost_and_no_others(line: Line) -> None:
    is_lost = fates(line, 300)
    assert [index for index, is_frame_lost in enumerate(is_lost, 1) if is_frame_lost] == [
        start + number for start in range(0, 300, 30) for number in (5, 12, 24)
    ]


@on(Impairment(loss=0.1, gemodel=(0.05, 0.4, 0.8, 0.01), loss_pattern="3 every 7"), also=["counters by cause"])
def test_several_kinds_of_loss_together_lose_the_union(line: Line) -> None:
    is_lost = fates(line)
    assert all(is_lost[index] for index in range(2, COUNT, 7))
    burst = (0.05 * 0.8 + 0.4 * 0.01) / 0.45
    expected = 1 - 0.9 * (1 - burst) * 6 / 7
    assert abs(statistics.fmean(is_lost) - expected) < 0.2 * expected

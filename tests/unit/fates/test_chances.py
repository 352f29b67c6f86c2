"""Losses, corruption, duplication and reordering happen at the configured rate, to the right frames."""

from __future__ import annotations

import math
import statistics

import pytest

from testbed.fates import fate_hash
from testbed.fates.fate_counters import Outcome
from testbed.fates.loss_models import GilbertElliott
from testbed.spec.layout import Impairment
from tests.unit.fates.statistical_checks import MIN_DEVIATION, TooSmallError, check_mean, check_share
from tests.unit.fates.wire_frames import (
    LINK,
    MICROSECOND,
    MILLISECOND,
    deliveries_of,
    direction,
    fates_of,
    number_of,
    numbered,
    run_schedule,
)

KEY = fate_hash.direction_key(1, LINK, "forward")


@pytest.mark.parametrize(("probability", "samples"), [(0.01, 140_000), (0.3, 4_000), (0.9, 300)])
def test_independent_losses_match_the_configured_rate(probability: float, samples: int) -> None:
    wire = direction(Impairment(loss=probability))
    frame = numbered(1)
    lost = sum(wire.offer(0, frame) is Outcome.LOSS for _ in range(samples))
    assert wire.counters.loss == lost
    assert check_share(lost, samples, probability, "frames lost") <= MIN_DEVIATION


def test_a_sample_too_small_for_a_deviation_of_a_fifth_is_rejected() -> None:
    with pytest.raises(TooSmallError, match="detects deviations of"):
        check_share(100, 10_000, 0.01, "frames lost")
    with pytest.raises(AssertionError, match=r"not 0\.01"):
        check_share(1700, 140_000, 0.01, "frames lost")


def test_a_loss_of_0_drops_no_frame_and_1_drops_all() -> None:
    schedule = [(index, numbered(index)) for index in range(1000)]
    assert len(deliveries_of(Impairment(delay=1, loss=0.0, duplicate=1e-300), schedule)) == 1000
    assert deliveries_of(Impairment(loss=1.0), schedule) == []


@pytest.mark.parametrize(("p", "r"), [(0.01, 0.3), (0.05, 0.5)])
def test_gilbert_elliott_has_the_burst_lengths_and_gaps_of_its_parameters(p: float, r: float) -> None:
    model = GilbertElliott((p, r, 1.0, 0.0), KEY)
    fates = [model.step(n) for n in range(1, 200_001)]
    bursts, gaps = run_lengths(fates)
    for lengths, parameter, kind in ((bursts, r, "bursts"), (gaps, p, "gaps")):
        # Lengths are geometric: mean 1 / parameter, variance (1 - parameter) / parameter^2.
        error = math.sqrt(1 - parameter) / parameter / math.sqrt(len(lengths))
        check_mean(statistics.fmean(lengths), 1 / parameter, error, f"mean length of {kind}")
        ones = sum(length == 1 for length in lengths)
        if smallest_detectable(parameter, len(lengths)) <= MIN_DEVIATION:
            check_share(ones, len(lengths), parameter, f"{kind} of one frame")


def smallest_detectable(share: float, samples: int) -> float:
    return 7.3 * math.sqrt(share * (1 - share) / samples) / share


def run_lengths(fates: list[bool]) -> tuple[list[int], list[int]]:
    """Return the lengths of runs of losses and of the gaps between them, without the truncated first and last run."""
    runs: list[tuple[bool, int]] = []
    for fate in fates:
        if runs and runs[-1][0] is fate:
            runs[-1] = (fate, runs[-1][1] + 1)
        else:
            runs.append((fate, 1))
    complete_runs = runs[1:-1]
    return [length for lost, length in complete_runs if lost], [length for lost, length in complete_runs if not lost]


def test_gilbert_elliott_uses_all_four_parameters() -> None:
    p, r, loss_in_bad, loss_in_good = 0.05, 0.2, 0.7, 0.1
    # Many short links with independent losses: the interval is computed from their spread.
    shares = []
    for link in range(300):
        model = GilbertElliott((p, r, loss_in_bad, loss_in_good), fate_hash.direction_key(1, str(link), "forward"))
        fates = [model.step(n) for n in range(1, 401)]
        shares.append(sum(fates[100:]) / 300)
    requested = (p * loss_in_bad + r * loss_in_good) / (p + r)
    check_mean(statistics.fmean(shares), requested, statistics.stdev(shares) / math.sqrt(len(shares)), "share lost")


def test_gilbert_elliott_steps_at_each_frame_of_the_direction_from_the_good_state() -> None:
    model = GilbertElliott((0.1, 0.3, 1.0, 0.0), KEY)
    expected = [model.step(n) for n in range(1, 301)]
    assert not expected[0]
    wire = direction(Impairment(gemodel=(0.1, 0.3, 1.0, 0.0)))
    frames = [numbered(1, source=0x020000000010 + index % 7) for index in range(300)]
    assert [wire.offer(0, frame) is Outcome.GEMODEL for frame in frames] == expected
    # The states also advance on frames that are lost by another cause.
    faulty = direction(Impairment(gemodel=(0.1, 0.3, 1.0, 0.0), loss=0.3, rules=("drop every(3)",)))
    outcomes = [faulty.offer(0, frame) for frame in frames]
    assert all(outcome.dropped for outcome, lost in zip(outcomes, expected, strict=True) if lost)
    assert {Outcome.RULE, Outcome.LOSS, Outcome.GEMODEL, Outcome.ACCEPTED} == set(outcomes)


@pytest.mark.parametrize(
    ("pattern", "lost"),
    [
        ("5, 12, 24", {5, 12, 24}),
        ("2-4,9", {2, 3, 4, 9}),
        ("1, 3 every 10", {1, 3, 11, 13, 21, 23}),
        ("10 every 10", {10, 20}),
    ],
)
def test_a_pattern_drops_frames_by_their_number_on_the_direction(pattern: str, lost: set[int]) -> None:
    schedule = [(index, numbered(index, source=0x020000000010 + index % 3)) for index in range(1, 26)]
    delivered = deliveries_of(Impairment(loss_pattern=pattern), schedule)
    assert {number for number, _ in schedule} - {number_of(frame) for _, frame in delivered} == lost


@pytest.mark.parametrize("flips", [1, 3, 16])
def test_corruption_flips_the_configured_number_of_bits_anywhere_in_the_frame(flips: int) -> None:
    frame_bytes, count = bytes(64), 4_000
    delivered, log = fates_of(
        Impairment(corrupt=1.0, corrupt_bits=flips), [(index, frame_bytes) for index in range(count)]
    )
    assert all(int.from_bytes(frame, "big").bit_count() == flips for _, frame in delivered)
    for (_, frame), record in zip(delivered, log, strict=True):
        assert frame == with_flipped_bits(frame_bytes, record.fate.positions)
    hits = [0] * 512
    for record in log:
        for position in record.fate.positions:
            hits[position] += 1
    expected = count * flips / 512
    chi_square = sum((hit_count - expected) ** 2 / expected for hit_count in hits)
    # 511 degrees of freedom: mean 511, standard deviation sqrt(2 * 511); 4.9 of them, and a margin for skewness.
    assert chi_square < 511 + 6 * math.sqrt(2 * 511)


def with_flipped_bits(frame: bytes, positions: tuple[int, ...]) -> bytes:
    number = int.from_bytes(frame, "big")
    for position in positions:
        number ^= 1 << len(frame) * 8 - 1 - position
    return number.to_bytes(len(frame), "big")


def test_corruption_happens_at_the_configured_rate_and_is_counted() -> None:
    wire = direction(Impairment(corrupt=0.1))
    delivered = run_schedule(wire, [(index, numbered(0)) for index in range(14_000)])
    corrupted = sum(frame != numbered(0) for _, frame in delivered)
    assert corrupted == wire.counters.corrupted
    check_share(corrupted, 14_000, 0.1, "frames corrupted")


def test_a_copy_follows_its_original_with_the_same_corruption() -> None:
    frame = numbered(7, 125)
    delivered = deliveries_of(Impairment(duplicate=1.0, corrupt=1.0, rate=10**6, delay=5), [(0, frame)])
    assert [due for due, _ in delivered] == [MILLISECOND + 5, 2 * MILLISECOND + 5]
    assert delivered[0][1] == delivered[1][1] != frame


def test_copies_match_the_configured_rate_and_exclude_lost_frames() -> None:
    wire = direction(Impairment(duplicate=0.2, loss=0.5))
    delivered = run_schedule(wire, [(index, numbered(index)) for index in range(24_000)])
    numbers = [number_of(frame) for _, frame in delivered]
    distinct = len(set(numbers))
    assert len(numbers) - distinct == wire.counters.duplicated
    assert wire.counters.loss == 24_000 - distinct
    check_share(len(numbers) - distinct, distinct, 0.2, "frames duplicated")


def test_a_copy_that_does_not_fit_is_dropped_by_the_queue() -> None:
    wire = direction(Impairment(duplicate=1.0, rate=10**6, queue_frames=1))
    assert [wire.offer(0, numbered(n)) for n in range(2)] == [Outcome.ACCEPTED, Outcome.QUEUE]
    assert (wire.counters.duplicated, wire.counters.queue) == (1, 1)
    wire = direction(Impairment(duplicate=1.0, rate=10**6, queue_frames=2))
    assert [wire.offer(0, numbered(n)) for n in range(2)] == [Outcome.ACCEPTED] * 2
    assert (wire.counters.duplicated, wire.counters.queue, wire.in_flight) == (2, 1, 3)


def test_only_reordered_frames_skip_the_delay() -> None:
    schedule = [(index * 10 * MICROSECOND, numbered(index)) for index in range(6_000)]
    wire = direction(Impairment(delay=MILLISECOND, reorder=0.2))
    reordered: list[int] = []
    delivered = run_schedule(wire, schedule)
    for due, frame in delivered:
        sent_at = number_of(frame) * 10 * MICROSECOND
        assert due - sent_at in (0, MILLISECOND)
        if due == sent_at:
            reordered.append(number_of(frame))
    assert wire.counters.reordered == len(reordered)
    check_share(len(reordered), 6_000, 0.2, "frames reordered")
    skipped = set(reordered)
    in_order = [number_of(frame) for _, frame in delivered if number_of(frame) not in skipped]
    assert in_order == sorted(in_order)


def test_ordered_and_unordered_events_are_merged_by_time() -> None:
    wire = direction(Impairment(delay=10, rules=("delay 5ns nth(1)", "delay 4ns nth(1)")))
    for now in range(8):
        wire.offer(now, numbered(now))
    # Frames 0, 1 and 5 are due at 15: ordered frames come first, then the others in the order of offering.
    delivered = [(due, number_of(frame)) for due, frame in wire.poll(100)]
    assert delivered == [(12, 2), (13, 3), (14, 4), (15, 5), (15, 0), (15, 1), (16, 6), (17, 7)]


def test_order_is_kept_under_any_jitter() -> None:
    schedule = [(index * MICROSECOND, numbered(index)) for index in range(2_000)]
    for distribution in ("uniform", "normal", "pareto"):
        impairment = Impairment(delay=MILLISECOND, jitter=5 * MILLISECOND, distribution=distribution)
        assert [number_of(frame) for _, frame in deliveries_of(impairment, schedule)] == list(range(2_000))

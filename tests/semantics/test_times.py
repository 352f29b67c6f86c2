"""Times of frames: delay, jitter, order, and the rate with its queue. No frame may be early; lateness depends on the
machine and has a tolerance."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import pytest

from testbed.spec.layout import Impairment
from tests.semantics.datapaths import Line, Run
from tests.semantics.impairment_checks import (
    CLOCKS,
    MILLISECOND,
    SECOND,
    TYPICAL,
    check_fates,
    check_times,
    mark_of,
    marks_of,
    on,
    on_the_wire,
    paced,
)
from tests.semantics.tapped_links import Schedule
from tests.unit.fates.statistical_checks import check_distribution

MICROSECOND = 10**3
DELAY = 3 * MILLISECOND


def in_a_burst(line: Line, schedule: Schedule, within: int) -> Run:
    """Send frames that all arrive within a time so short that the queue's length at each arrival is known. A busy machine
    may need more than one attempt."""
    for _ in range(20):
        run = line.carry(schedule)
        if run.offered[-1][0] <= within:
            return run
    raise AssertionError(f"this machine does not send {len(schedule)} frames within {within} ns")


# Delay and jitter


@on(Impairment(delay=DELAY))
def test_every_frame_comes_after_the_delay_in_order(line: Line) -> None:
    run = line.carry(paced(300, 200 * MICROSECOND))
    assert run.frames == [frame for _, frame in run.offered]
    check_times(line, run.arrived, [time + DELAY for time, _ in run.offered])


def uniform_cdf(value: float, spread: int) -> float:
    """Cumulative distribution function of the uniform distribution between -spread and spread."""
    return min(max((value + spread) / (2 * spread), 0.0), 1.0)


JITTERY = Impairment(delay=DELAY, jitter=100 * MICROSECOND)


@on(replace(JITTERY, distribution="uniform"), timed=True)
def test_jitter_varies_the_delay_of_frames_that_are_far_enough_apart(line: Line) -> None:
    """Scheduled delays are checked exactly in virtual time; live ones must be the same function of frame numbers."""
    spread = line.impairments["forward"].jitter
    count = 4_000 if line.virtual else 400
    run = line.carry(paced(count, 300 * MICROSECOND))
    assert marks_of(run.frames) == list(range(count))
    if not line.exact("uniform jitter"):
        for (arrived, _), (time, _) in zip(run.offered, run.arrived, strict=True):
            assert time - arrived >= DELAY - spread - CLOCKS
        return
    deadlines = [time for time, _ in line.expected(run).arrived]
    scheduled = [deadline - time for deadline, (time, _) in zip(deadlines, run.offered, strict=True)]
    assert all(DELAY - spread <= delay for delay in scheduled)
    check_times(line, run.arrived, deadlines)
    if line.virtual:
        check_distribution(
            [delay - DELAY for delay in scheduled], lambda value: uniform_cdf(value, spread), "uniform jitter"
        )


@on(replace(JITTERY, distribution="normal"), timed=True)
def test_jitter_of_a_table_varies_the_delay(line: Line) -> None:
    run = line.carry(paced(400, 500 * MICROSECOND))
    assert sorted(marks_of(run.frames)) == list(range(400))
    if line.exact("repeatable fates"):
        check_times(line, run.arrived, [time for time, _ in line.expected(run).arrived])


@on(Impairment(delay=MILLISECOND, jitter=2_200 * MILLISECOND, distribution="uniform"), timed=True)
def test_a_jitter_may_be_seconds_long_and_no_delay_is_negative(line: Line) -> None:
    run = line.carry(paced(20, MILLISECOND))
    check_times(line, run.arrived, [time for time, _ in line.expected(run).arrived])


TRACE = "0ms\n2.5ms\n1ms\n7ms\n"


@on(
    Impairment(delay=MILLISECOND, distribution="trace", jitter_file="jitter.txt"),
    files={"jitter.txt": TRACE},
    timed=True,
)
def test_a_trace_gives_frames_their_delays_in_turn(line: Line) -> None:
    run = line.carry(paced(40, 10 * MILLISECOND))
    delays = [0, 2_500_000, 1_000_000, 7_000_000] * 10
    deadlines = [time + MILLISECOND + step for (time, _), step in zip(run.offered, delays, strict=True)]
    deadlines_in_order = [
        max(deadlines[: index + 1]) for index in range(len(deadlines))
    ]  # the machine may have sent them less than 10 ms apart
    check_times(line, run.arrived, deadlines_in_order)


@on(Impairment(delay=20 * MILLISECOND, jitter=20 * MILLISECOND, distribution="uniform"))
def test_frames_keep_their_order_under_jitter(line: Line) -> None:
    run = line.carry(paced(300, 100 * MICROSECOND))
    numbers = marks_of(run.frames)
    if line.exact("order under jitter"):
        assert numbers == list(range(300))
    else:  # bound of the table: frames closer together than twice the jitter may change places
        assert sorted(numbers) == list(range(300))
        assert numbers != sorted(numbers)
        offered_times = {mark_of(frame): time for time, frame in run.offered}
        for index, later_number in enumerate(numbers):
            overtaken = [earlier for earlier in numbers[index + 1 :] if earlier < later_number]
            assert all(
                offered_times[later_number] - offered_times[earlier] <= 40 * MILLISECOND + CLOCKS
                for earlier in overtaken
            )


# The rate

RATE = 4_000_000
QUEUE = 10**6


LARGEST = 1500 + 14 + 4
"""Bytes of a frame that fills the MTU, with a tag."""


def bucket(line: Line, largest: int = LARGEST) -> int:
    """Return the bytes that a shaper may pass at once: a millisecond at the rate, and one frame. largest: size of the
    largest frame."""
    return -(-line.impairments["forward"].rate // 8_000) + largest


def check_rate(line: Line, run: Run, sizes: list[int], largest: int = LARGEST) -> None:
    """Check arrivals of a burst behind a rate. sizes: bytes of each frame at the rate; largest: that of an MTU-sized
    one."""
    rate = line.impairments["forward"].rate
    assert run.frames == [frame for _, frame in run.offered]
    if line.exact("time on the wire"):
        check_times(line, run.arrived, on_the_wire(run.offered, sizes, rate))
        return
    # In the time t since the first frame came, at most the rate times t and the bucket, as the table gives in its bound.
    allowance = bucket(line, largest)
    passed_bytes = 0
    for (time, _), size in zip(run.arrived, sizes, strict=True):
        passed_bytes += size
        assert (passed_bytes - allowance) * 8 * SECOND <= rate * (time + CLOCKS)
    end_of_last = on_the_wire(run.offered, sizes, rate)[-1]
    assert run.arrived[-1][0] <= end_of_last + 100 * TYPICAL


@on(Impairment(rate=RATE, queue=QUEUE), timed=True)
@pytest.mark.parametrize("size", [60, 250, 1514])
def test_frames_of_every_size_leave_at_the_rate(line: Line, size: int) -> None:
    run = line.carry(paced(100, size=size))
    check_rate(line, run, [size] * 100)


@on(Impairment(rate=RATE, queue=QUEUE), timed=True)
def test_small_and_large_frames_take_their_time_on_the_wire(line: Line) -> None:
    sizes = [1514, 60, 60, 700] * 20
    schedule = [entry for index, size in enumerate(sizes) for entry in paced(1, size=size, first=index)]
    run = line.carry(schedule)
    check_rate(line, run, sizes)


@on(Impairment(rate=RATE, queue=QUEUE), timed=True)
def test_a_single_frame_takes_its_time_on_the_wire(line: Line) -> None:
    run = line.carry(paced(40, 6 * MILLISECOND, size=1514))
    ends = on_the_wire(run.offered, [1514] * 40, RATE)
    if line.exact("time on the wire"):
        check_times(line, run.arrived, ends)
    else:  # early by the time that the bucket takes to fill
        tolerance = bucket(line) * 8 * SECOND // RATE + CLOCKS
        assert all(time >= end - tolerance for (time, _), end in zip(run.arrived, ends, strict=True))


@on(Impairment(rate=100_003, queue=QUEUE), timed=True)
def test_a_rate_that_is_no_multiple_of_8_is_kept(line: Line) -> None:
    run = line.carry(paced(40, size=100))
    if line.exact("rate in bits"):
        check_rate(line, run, [100] * 40)
    else:
        assert (
            run.arrived[-1][0]
            >= on_the_wire(run.offered, [100] * 40, 100_007)[-1]
            - (0 if line.exact("time on the wire") else bucket(line) * 8 * SECOND // 100_003)
            - CLOCKS
        )


@on(Impairment(rate=RATE, queue=QUEUE, minimum_frame=60, overhead=24), timed=True)
@pytest.mark.parametrize("size", [20, 60, 1000])
def test_frames_count_with_the_minimum_size_and_the_overhead(line: Line, size: int) -> None:
    run = line.carry(paced(100, size=size))
    check_rate(line, run, [max(size, 60) + 24] * 100, LARGEST + 24)


@on(Impairment(rate=RATE, queue=QUEUE, overhead=8, cell_size=48, cell_overhead=5), timed=True)
@pytest.mark.parametrize("size", [40, 41, 1514])
def test_frames_are_padded_to_full_cells(line: Line, size: int) -> None:
    """AAL5: a trailer of 8 bytes, then 53-byte cells with 48 bytes of payload each."""
    run = line.carry(paced(100, size=size))
    check_rate(line, run, [53 * -(-(size + 8) // 48)] * 100, 53 * -(-(LARGEST + 8) // 48))


@on(Impairment(rate_trace="rate.txt"), files={"rate.txt": "10\n20\n20\n"}, timed=True)
def test_a_trace_of_opportunities_is_the_rate(line: Line) -> None:
    """The trace gives one opportunity after 10 ms and two after 20 ms; its phase is unknown to the test."""
    run = line.carry(paced(30, size=1504))
    assert run.frames == [frame for _, frame in run.offered]
    patterns = (0, 10, 10, 20, 30, 30), (0, 0, 10, 20, 20, 30), (0, 10, 20, 20, 30, 40)  # entry points into the trace
    for pattern in patterns:
        period = pattern[3]
        deadlines = [(pattern[index % 3] + index // 3 * period) * MILLISECOND for index in range(30)]
        lateness = [time - deadline for (time, _), deadline in zip(run.arrived, deadlines, strict=True)]
        lateness = [value - min(lateness) for value in lateness]
        if sorted(lateness)[len(lateness) // 4] < TYPICAL:
            if line.virtual:
                assert set(lateness) == {0}
            return
    raise AssertionError(f"not the trace's times: {[time for time, _ in run.arrived]}")


@on(
    Impairment(delay=10 * MILLISECOND, jitter=5 * MILLISECOND, distribution="uniform", rate=RATE, queue=QUEUE),
    timed=True,
)
def test_jitter_delays_frames_but_not_the_wire(line: Line) -> None:
    run = line.carry(paced(100, size=500))
    assert marks_of(run.frames) == list(range(100))
    if line.exact("jitter behind a rate"):
        check_times(line, run.arrived, [time for time, _ in line.expected(run).arrived])


# The queue


def frames_in_flight(line: Line) -> int:
    """Return the number of frames in flight for which netem has room: as many of the largest as the rate sends in the
    delay."""
    impairment = line.impairments["forward"]
    return -(-impairment.rate * impairment.delay // (8 * SECOND * LARGEST))


def check_burst(line: Line, run: Run, feature: str, frames: int, size: int) -> None:
    """Check that `frames` frames of a burst pass: the one on the wire and those in the queue."""
    assert marks_of(run.frames) == sorted(marks_of(run.frames))
    if line.exact(feature):
        assert marks_of(run.frames) == list(range(frames))
        check_fates(line, run)
    elif line.datapath == "tc":  # longer or shorter by the bucket and one frame
        slack = -(-bucket(line) // size)
        assert frames - slack <= len(run.frames) <= frames + slack
    else:
        # netem counts frames, of which fewer bytes fit when they are small. It includes those in flight: a burst finds more
        # room than the queue's.
        assert len(run.frames) <= frames + frames_in_flight(line)


@on(Impairment(rate=500_000, queue=10_000))
@pytest.mark.parametrize(("size", "frames"), [(1000, 11), (1100, 10)])
def test_a_queue_in_bytes_drops_what_does_not_fit(line: Line, size: int, frames: int) -> None:
    run = in_a_burst(line, paced(40, size=size), 15 * MILLISECOND)
    check_burst(line, run, "queue in bytes", frames, size)


@on(Impairment(rate=500_000, queue_frames=7))
@pytest.mark.parametrize("size", [1000, 1514])
def test_a_queue_in_frames_drops_what_does_not_fit(line: Line, size: int) -> None:
    run = in_a_burst(line, paced(40, size=size), 15 * MILLISECOND)
    check_burst(line, run, "queue in frames", 8, size)


@on(Impairment(rate=500_000, queue_frames=7, delay=50 * MILLISECOND))
def test_frames_in_flight_are_not_in_the_queue(line: Line) -> None:
    """Three bursts, each offered while frames of the one before are in flight."""
    run = in_a_burst(line, paced(40, size=1514), 20 * MILLISECOND)
    check_burst(line, run, "queue in frames before a delay", 8, 1514)


@on(Impairment(rate=100_000_000))
def test_the_default_queue_holds_128_kibibytes(line: Line) -> None:
    """The queue holds 128 KiB besides the frame on the wire; the rate drains it during the burst."""
    run = line.carry(paced(400, size=1514))
    assert marks_of(run.frames) == sorted(set(marks_of(run.frames)))
    queue_length = 128 * 1024 // 1514
    sent_meanwhile = run.offered[-1][0] * 100_000_000 // (8 * SECOND) // 1514
    slack = 1 if line.exact("default queue") else 2 + bucket(line) // 1514
    assert queue_length <= len(run.frames) <= queue_length + 1 + sent_meanwhile + slack


@on(Impairment(rate=50_000_000, delay=20 * MILLISECOND, queue=30_000))
def test_drops_of_the_queue_under_load_follow_from_arrival_times(line: Line) -> None:
    run = line.carry(paced(600, 100 * MICROSECOND, size=1000))
    numbers = marks_of(run.frames)
    assert numbers == sorted(set(numbers))
    if line.exact("queue in bytes"):
        # The relay's and the test's stamps differ by a few microseconds, so that a frame may just fit or just not fit.
        assert abs(len(numbers) - len(line.expected(run).frames)) <= 3
        assert not line.virtual or bisect_left(numbers, 599) >= 300
    else:  # netem's limit counts frames queued and in flight, and it drops none below the limit
        queue_length = 30_000 // LARGEST + frames_in_flight(line)
        arrival_times = {mark_of(frame): time for time, frame in run.arrived}
        for number, (arrived, _) in enumerate(run.offered):
            if number not in arrival_times:
                assert sum(time > arrived for mark, time in arrival_times.items() if mark < number) >= queue_length
    first_lost = next(index for index, number in enumerate([*numbers, -1]) if index != number)
    assert first_lost >= 30

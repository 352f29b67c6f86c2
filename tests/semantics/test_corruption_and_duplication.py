"""Corruption, duplication and reordering at the configured rate, and rules on the frames that they match."""

from __future__ import annotations

from collections import Counter

from testbed.spec.layout import Impairment
from tests.semantics.datapaths import Line, Run
from tests.semantics.impairment_checks import (
    CLOCKS,
    MILLISECOND,
    check_fates,
    check_times,
    flipped,
    mark_of,
    marked,
    marks_of,
    on,
    on_the_wire,
    paced,
)
from tests.unit.fates.statistical_checks import check_share
from tests.unit.fates.wire_frames import tcp, udp

COUNT = 4_000
DELAY = 200 * MILLISECOND


def flips(line: Line, count: int) -> list[int]:
    """Return the number of flipped bits of each frame."""
    run = line.carry(paced(count))
    check_fates(line, run)
    assert len(run.arrived) == count
    return [flipped(frame, original) for frame, (_, original) in zip(run.frames, run.offered, strict=True)]


@on(Impairment(corrupt=0.3))
def test_one_bit_is_flipped_at_the_configured_rate(line: Line) -> None:
    counts = Counter(flips(line, COUNT))
    assert set(counts) == {0, 1}
    check_share(counts[1], COUNT, 0.3, "frames corrupted")


@on(Impairment(corrupt=0.5, corrupt_bits=3))
def test_several_bits_are_flipped(line: Line) -> None:
    counts = Counter(flips(line, 2_000))
    assert set(counts) == {0, 3}
    check_share(counts[3], 2_000, 0.5, "frames corrupted")


def numbers_of_copies(run: Run) -> Counter[int]:
    return Counter(Counter(marks_of(run.frames)).values())


@on(Impairment(duplicate=0.3))
def test_a_copy_follows_its_original_at_once_at_the_configured_rate(line: Line) -> None:
    run = line.carry(paced(COUNT))
    check_fates(line, run)
    assert marks_of(run.frames) == sorted(marks_of(run.frames))
    copies = numbers_of_copies(run)
    assert set(copies) == {1, 2}
    assert copies.total() == COUNT
    check_share(copies[2], COUNT, 0.3, "frames duplicated")


@on(Impairment(duplicate=0.5, loss=0.4))
def test_a_lost_frame_is_not_duplicated_and_no_copy_is_lost(line: Line) -> None:
    count = 7_000
    run = line.carry(paced(count))
    check_fates(line, run)
    copies = numbers_of_copies(run)
    assert set(copies) == {1, 2}
    missing_count = count - copies.total()
    if line.exact("duplicate with loss"):
        check_share(missing_count, count, 0.4, "frames that do not arrive")
        check_share(copies[2], count - missing_count, 0.5, "copies of those that arrive")
    else:  # bound of the table: l(1-d) do not arrive, d(1-l)^2 arrive twice
        check_share(missing_count, count, 0.4 * 0.5, "frames that do not arrive")
        check_share(copies[2], count, 0.5 * 0.6**2, "frames that arrive twice")


@on(Impairment(duplicate=1.0, corrupt=0.5))
def test_a_copy_is_as_corrupt_as_its_original(line: Line) -> None:
    count = 5_000
    run = line.carry(paced(count))
    check_fates(line, run)
    assert marks_of(run.frames) == [number for number in range(count) for _ in range(2)]
    pairs = list(zip(run.frames[::2], run.frames[1::2], strict=True))
    equal_pairs = sum(first == second for first, second in pairs)
    if line.exact("duplicate with other fates"):
        assert equal_pairs == len(pairs)
    else:  # drawn separately: both intact, or (rarely) the same bit
        check_share(equal_pairs, len(pairs), 0.25, "pairs of equal frames")


@on(Impairment(delay=DELAY, reorder=0.5))
def test_reordered_frames_skip_the_delay_and_no_other_does(line: Line) -> None:
    run = line.carry(paced(2_000))
    arrivals = {mark_of(frame): time for time, frame in run.offered}
    arrived = [(time - arrivals[mark_of(frame)], mark_of(frame)) for time, frame in run.arrived]
    assert sorted(number for _, number in arrived) == sorted(arrivals)
    if line.exact("repeatable fates"):
        reordered = {record.n - 1 for record in line.expected(run).log}
    else:
        reordered = {number for elapsed, number in arrived if elapsed < DELAY}
    skipped = [number for _, number in arrived if number in reordered]
    in_order = [number for _, number in arrived if number not in reordered]
    # A late reordered frame may arrive among the others, but never after a later reordered frame.
    assert skipped == sorted(skipped)
    assert in_order == sorted(in_order)
    assert all(elapsed >= DELAY - CLOCKS for elapsed, number in arrived if number not in reordered)
    assert sum(elapsed < DELAY for elapsed, number in arrived if number in reordered) > len(reordered) // 4
    check_share(len(skipped), 2_000, 0.5, "frames reordered")


@on(Impairment(delay=DELAY, reorder=0.5, rate=10**7, queue=10**6), timed=True)
def test_a_frame_that_skips_the_delay_still_takes_its_time_on_the_wire(line: Line) -> None:
    run = line.carry(paced(400, size=250))
    oracle = line.expected(run)
    if not line.exact("reorder behind a rate"):  # the reordered share leaves at once, the wire carries the others
        offered_times = {mark_of(frame): time for time, frame in run.offered}
        early_count = sum(time - offered_times[mark_of(frame)] < DELAY for time, frame in run.arrived)
        assert 100 < early_count < 300
        assert len(run.arrived) == 400
        return
    ends = {mark_of(frame): end for (_, frame), end in zip(
        run.offered, on_the_wire(run.offered, [250] * 400, 10**7), strict=True
    )}  # fmt: skip
    skipped = {mark_of(frame) for time, frame in oracle.arrived if time == ends[mark_of(frame)]}
    assert 100 < len(skipped) < 300
    assert marks_of(run.frames) == marks_of(oracle.frames)
    deadlines = [ends[number] + (0 if number in skipped else DELAY) for number in marks_of(run.frames)]
    check_times(line, run.arrived, deadlines)


# A frame to which a rule applies is neither seen nor counted by the rules after it.
RULES = (
    "drop udp and nth(3)",
    "drop tcp.dport == 5001 and every(4)",
    "duplicate eth.type == 0x88b5 and between(2, 4)",
    "corrupt 2 eth.type == 0x88b5 and nth(7)",
    "delay 100ms eth.type == 0x88b5 and nth(9)",
)


@on(Impairment(rules=RULES))
def test_rules_apply_to_the_frames_that_they_match(line: Line) -> None:
    frames = [marked(number) for number in range(1, 41)]
    schedule = [(0, frame) for frame in frames]
    schedule += [(0, udp(data=bytes([number]))) for number in range(1, 6)]
    schedule += [(0, tcp(data=bytes([number]))) for number in range(1, 10)]
    schedule += [(0, tcp(destination=5002, data=bytes([number]))) for number in range(1, 10)]
    run = line.carry(schedule)
    check_fates(line, run)
    ip_frames = [frame for frame in run.frames if frame[12:14] == b"\x08\x00"]
    assert [frame[-1] for frame in ip_frames if frame[23] == 17] == [1, 2, 4, 5]
    assert [frame[-1] for frame in ip_frames if frame[23] == 6 and frame[37] == 5001 & 255] == [1, 2, 3, 5, 6, 7, 9]
    assert [frame[-1] for frame in ip_frames if frame[23] == 6 and frame[37] == 5002 & 255] == list(range(1, 10))
    intact_frames = [frame for frame in run.frames if frame in frames]
    damaged_frames = [frame for frame in run.frames if frame not in {original for _, original in schedule}]
    assert [flipped(frame, frames[9]) for frame in damaged_frames] == [2]
    numbers = marks_of(intact_frames)
    assert numbers == [1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 11, 12, *range(14, 41), 13]

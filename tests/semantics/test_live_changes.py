"""Impairments that change during traffic, and the independence of the two directions of a link."""

from __future__ import annotations

from dataclasses import replace

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
from tests.unit.fates.statistical_checks import check_share

MICROSECOND = 10**3
GAP = 250 * MICROSECOND
COUNT = 1_200
CHANGED_AFTER = 400
"""Index of the first frame that the change may affect; frames keep arriving while it is made."""


def through_change(line: Line, after: Impairment, schedule: Schedule | None = None) -> tuple[Run, range, Impairment]:
    before = line.impairments["forward"]
    run, change_range = line.carry_through_change(schedule or paced(COUNT, GAP), CHANGED_AFTER, after)
    return run, change_range, before


def check_changed_once(line: Line, run: Run, change_range: range, before: Impairment) -> None:
    """Check that the output matches the model with a single change before one of the frames in `change_range`."""
    possible_indices = {
        index for index in change_range if line.expected_through_change(run, index, before).frames == run.frames
    }
    assert possible_indices, (
        f"no change between the frames {change_range.start} and {change_range.stop} explains the received frames"
    )


@on(Impairment(loss=0.2), also=["live change", "repeatable fates"])
def test_a_changed_loss_applies_from_one_frame_on(line: Line) -> None:
    run, change_range, before = through_change(line, Impairment(loss=0.7))
    if line.exact("repeatable fates"):
        check_changed_once(line, run, change_range, before)
        return
    arrived = marks_of(run.frames)
    assert arrived == sorted(set(arrived))
    earlier, later = change_range.start, COUNT - change_range.stop + 1
    assert abs(sum(number < earlier for number in arrived) - 0.8 * earlier) < 0.2 * earlier
    assert abs(sum(number >= COUNT - later for number in arrived) - 0.3 * later) < 0.2 * later


@on(Impairment(loss_pattern="2 every 3"))
def test_a_changed_pattern_counts_from_one(line: Line) -> None:
    run, change_range, before = through_change(line, Impairment(loss_pattern="1, 2 every 5"))
    check_changed_once(line, run, change_range, before)


@on(Impairment(delay=60 * MILLISECOND), also=["live change"])
def test_a_shorter_delay_neither_speeds_up_frames_in_flight_nor_lets_them_be_overtaken(line: Line) -> None:
    run, change_range, _ = through_change(line, Impairment(delay=20 * MILLISECOND))
    offered_times = {mark_of(frame): time for time, frame in run.offered}
    assert len(run.arrived) == COUNT
    earlier = [time for time, frame in run.arrived if mark_of(frame) < change_range.start]
    deadlines = [offered_times[number] + 60 * MILLISECOND for number in range(change_range.start)]
    check_times(line, [(time, b"") for time in earlier], deadlines)
    later = [(time, mark_of(frame)) for time, frame in run.arrived if mark_of(frame) >= change_range.stop]
    assert all(time >= offered_times[number] + 20 * MILLISECOND - CLOCKS for time, number in later)
    assert any(time < offered_times[number] + 60 * MILLISECOND for time, number in later)
    if line.exact("repeatable fates"):  # the wire model's order; netem sorts by the time at which frames are due
        assert marks_of(run.frames) == list(range(COUNT))


@on(Impairment(rate=2_000_000, queue=10**6), also=["live change"], timed=True)
def test_a_changed_rate_applies_to_later_frames(line: Line) -> None:
    run, _, _ = through_change(line, Impairment(rate=6_000_000, queue=10**6), paced(COUNT, 2 * GAP, size=500))
    assert marks_of(run.frames) == list(range(COUNT))
    end = run.arrived[-1][0]
    slowest = on_the_wire(run.offered, [500] * COUNT, 2_000_000)[-1]
    fastest = on_the_wire(run.offered, [500] * COUNT, 6_000_000)[-1]
    tolerance = 0 if line.exact("time on the wire") else MILLISECOND + 1518 * 8 * SECOND // 6_000_000  # a token bucket
    assert fastest - tolerance - CLOCKS < end < slowest + 100 * TYPICAL


@on(Impairment(delay=5 * MILLISECOND), also=["live change", "counters by cause"])
def test_a_change_of_the_delay_alone_changes_no_fate(line: Line) -> None:
    """The link also loses frames."""
    with_loss = Impairment(delay=5 * MILLISECOND, loss=0.3)
    if line.virtual:
        line.impairments["forward"] = with_loss
    else:
        line.set("forward", with_loss)  # type: ignore[attr-defined]  # a line that is not virtual is a cluster's
    run, _, _ = through_change(line, replace(with_loss, delay=7 * MILLISECOND))
    if line.exact("repeatable fates"):
        assert run.frames == line.expected(run).frames
    else:
        arrived = set(marks_of(run.frames))
        assert abs(len(arrived) - 0.7 * COUNT) < 0.2 * COUNT


# Both directions


def run_both_directions(line: Line, count: int) -> dict[str, Run]:
    """Carry the same schedule in both directions at once."""
    runs = line.carry_both({"forward": paced(count, 20 * MICROSECOND), "backward": paced(count, 20 * MICROSECOND)})
    for direction in ("forward", "backward"):
        check_fates(line, runs[direction], direction)
    return {str(direction): run for direction, run in runs.items()}


@on(Impairment(loss=0.3), Impairment(loss=0.3))
def test_both_directions_lose_equally_and_independently(line: Line) -> None:
    runs = run_both_directions(line, 3_200)
    lost_frames = {direction: set(range(3_200)) - set(marks_of(run.frames)) for direction, run in runs.items()}
    for direction, numbers in lost_frames.items():
        check_share(len(numbers), 3_200, 0.3, f"frames lost {direction}")
    lost_in_both = len(lost_frames["forward"] & lost_frames["backward"])
    assert abs(lost_in_both - 0.09 * 3_200) <= 4.892 * (0.09 * 0.91 * 3_200) ** 0.5


@on(Impairment(duplicate=0.3), Impairment(duplicate=0.3))
def test_both_directions_duplicate_equally(line: Line) -> None:
    for direction, run in run_both_directions(line, 3_200).items():
        check_share(len(run.frames) - 3_200, 3_200, 0.3, f"frames duplicated {direction}")


@on(Impairment(corrupt=0.3), Impairment(corrupt=0.3))
def test_both_directions_corrupt_equally(line: Line) -> None:
    for direction, run in run_both_directions(line, 3_200).items():
        originals = {frame for _, frame in run.offered}
        check_share(sum(frame not in originals for frame in run.frames), 3_200, 0.3, f"frames corrupted {direction}")


@on(Impairment(delay=4 * MILLISECOND), Impairment(delay=9 * MILLISECOND))
def test_each_direction_has_its_own_delay(line: Line) -> None:
    schedule = paced(200, GAP)
    runs = line.carry_both({"forward": schedule, "backward": schedule})
    for direction, delay in (("forward", 4), ("backward", 9)):
        run = runs[direction]  # type: ignore[index]
        assert marks_of(run.frames) == list(range(200))
        check_times(line, run.arrived, [time + delay * MILLISECOND for time, _ in run.offered])


@on(Impairment(loss=1.0))
def test_an_impairment_of_one_direction_does_not_affect_the_other(line: Line) -> None:
    schedule = paced(300)
    runs = line.carry_both({"forward": schedule, "backward": schedule})
    assert runs["forward"].frames == []
    assert marks_of(runs["backward"].frames) == list(range(300))

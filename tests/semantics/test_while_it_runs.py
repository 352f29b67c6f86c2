"""Impairments that change while frames come, and the two directions of a link, which know nothing of each other."""

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
PLACE = 400
"""First frame that may meet the change, which takes a while as frames go on coming."""


def through_change(line: Line, after: Impairment, schedule: Schedule | None = None) -> tuple[Run, range, Impairment]:
    before = line.impairments["forward"]
    run, places = line.carry_through_change(schedule or paced(COUNT, GAP), PLACE, after)
    return run, places, before


def check_changed_once(line: Line, run: Run, places: range, before: Impairment) -> None:
    """Check that the output matches the model with a single change before one of the frames at `places`."""
    actual = {place for place in places if line.expected_through_change(run, place, before).frames == run.frames}
    assert actual, f"no change between the frames {places.start} and {places.stop} explains what came out"


@on(Impairment(loss=0.2), also=["live change", "repeatable fates"])
def test_another_loss_holds_from_one_frame_on(line: Line) -> None:
    run, places, before = through_change(line, Impairment(loss=0.7))
    if line.exact("repeatable fates"):
        check_changed_once(line, run, places, before)
        return
    arrived = marks_of(run.frames)
    assert arrived == sorted(set(arrived))
    earlier, later = places.start, COUNT - places.stop + 1
    assert abs(sum(number < earlier for number in arrived) - 0.8 * earlier) < 0.2 * earlier
    assert abs(sum(number >= COUNT - later for number in arrived) - 0.3 * later) < 0.2 * later


@on(Impairment(loss_pattern="2 every 3"))
def test_another_pattern_counts_from_one_again(line: Line) -> None:
    run, places, before = through_change(line, Impairment(loss_pattern="1, 2 every 5"))
    check_changed_once(line, run, places, before)


@on(Impairment(delay=60 * MILLISECOND), also=["live change"])
def test_a_shorter_delay_does_not_hurry_what_is_under_way_nor_let_it_be_overtaken(line: Line) -> None:
    run, places, _ = through_change(line, Impairment(delay=20 * MILLISECOND))
    offered_times = {mark_of(frame): when for when, frame in run.offered}
    assert len(run.arrived) == COUNT
    earlier = [when for when, frame in run.arrived if mark_of(frame) < places.start]
    due = [offered_times[number] + 60 * MILLISECOND for number in range(places.start)]
    check_times(line, [(when, b"") for when in earlier], due)
    later = [(when, mark_of(frame)) for when, frame in run.arrived if mark_of(frame) >= places.stop]
    assert all(when >= offered_times[number] + 20 * MILLISECOND - CLOCKS for when, number in later)
    assert any(when < offered_times[number] + 60 * MILLISECOND for when, number in later)
    if line.exact("repeatable fates"):  # the wire model's order; netem sorts by the time at which frames are due
        assert marks_of(run.frames) == list(range(COUNT))


@on(Impairment(rate=2_000_000, queue=10**6), also=["live change"], timed=True)
def test_another_rate_holds_for_what_comes_from_then_on(line: Line) -> None:
    run, _, _ = through_change(line, Impairment(rate=6_000_000, queue=10**6), paced(COUNT, 2 * GAP, size=500))
    assert marks_of(run.frames) == list(range(COUNT))
    end = run.arrived[-1][0]
    slowest = on_the_wire(run.offered, [500] * COUNT, 2_000_000)[-1]
    fastest = on_the_wire(run.offered, [500] * COUNT, 6_000_000)[-1]
    early = 0 if line.exact("time on the wire") else MILLISECOND + 1518 * 8 * SECOND // 6_000_000  # a token bucket
    assert fastest - early - CLOCKS < end < slowest + 100 * TYPICAL


@on(Impairment(delay=5 * MILLISECOND), also=["live change", "counters by cause"])
def test_a_change_of_the_delay_alone_shifts_nobodys_fate(line: Line) -> None:
    """The link also loses frames."""
    with_loss = Impairment(delay=5 * MILLISECOND, loss=0.3)
    if line.virtual:
        line.impairments["forward"] = with_loss
    else:
        line.set("forward", with_loss)  # type: ignore[attr-defined]  # every other line is a cluster's
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
    for way in ("forward", "backward"):
        check_fates(line, runs[way], way)
    return {str(way): run for way, run in runs.items()}


@on(Impairment(loss=0.3), Impairment(loss=0.3))
def test_both_directions_lose_alike_and_independently(line: Line) -> None:
    runs = run_both_directions(line, 3_200)
    lost = {way: set(range(3_200)) - set(marks_of(run.frames)) for way, run in runs.items()}
    for way, numbers in lost.items():
        check_share(len(numbers), 3_200, 0.3, f"frames lost {way}")
    together = len(lost["forward"] & lost["backward"])
    assert abs(together - 0.09 * 3_200) <= 4.892 * (0.09 * 0.91 * 3_200) ** 0.5


@on(Impairment(duplicate=0.3), Impairment(duplicate=0.3))
def test_both_directions_double_alike(line: Line) -> None:
    for way, run in run_both_directions(line, 3_200).items():
        check_share(len(run.frames) - 3_200, 3_200, 0.3, f"frames doubled {way}")


@on(Impairment(corrupt=0.3), Impairment(corrupt=0.3))
def test_both_directions_corrupt_alike(line: Line) -> None:
    for way, run in run_both_directions(line, 3_200).items():
        sent = {frame for _, frame in run.offered}
        check_share(sum(frame not in sent for frame in run.frames), 3_200, 0.3, f"frames corrupted {way}")


@on(Impairment(delay=4 * MILLISECOND), Impairment(delay=9 * MILLISECOND))
def test_each_direction_has_its_own_delay(line: Line) -> None:
    schedule = paced(200, GAP)
    runs = line.carry_both({"forward": schedule, "backward": schedule})
    for way, delay in (("forward", 4), ("backward", 9)):
        run = runs[way]  # type: ignore[index]
        assert marks_of(run.frames) == list(range(200))
        check_times(line, run.arrived, [when + delay * MILLISECOND for when, _ in run.offered])


@on(Impairment(loss=1.0))
def test_an_impairment_of_one_direction_leaves_the_other_alone(line: Line) -> None:
    schedule = paced(300)
    runs = line.carry_both({"forward": schedule, "backward": schedule})
    assert runs["forward"].frames == []
    assert marks_of(runs["backward"].frames) == list(range(300))

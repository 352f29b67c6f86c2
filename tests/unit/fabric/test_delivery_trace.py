"""Rate traces in mahimahi's format: delivery opportunities of a link direction."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.fabric.delivery_trace import OPPORTUNITY_SIZE, parse_delivery_trace
from testbed.fabric.direction import LinkDirection
from testbed.fates.fate_counters import Outcome
from testbed.fates.text_files import BrokenFileError
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import MILLISECOND, direction, numbered, run_schedule

TRACE = "1\n3\n3\n10\n"


def traced_direction(text: str = TRACE, **options: object) -> LinkDirection:
    options = {"delay": 0, **options}
    return direction(Impairment(rate_trace="up.trace", **options), files={"up.trace": text})  # type: ignore[arg-type]


def delivery_times(wire: LinkDirection, schedule: list[tuple[int, int]]) -> list[float]:
    """Return delivery times in ms of frames offered at (ms, size)."""
    frames = [(time * MILLISECOND, numbered(index, size)) for index, (time, size) in enumerate(schedule)]
    return [due / MILLISECOND for due, _ in run_schedule(wire, frames)]


def test_each_opportunity_takes_one_large_frame_and_the_trace_repeats() -> None:
    assert delivery_times(traced_direction(), [(0, 1504)] * 9) == [1, 3, 3, 10, 11, 13, 13, 20, 21]


def test_small_frames_share_the_next_opportunity() -> None:
    assert delivery_times(traced_direction(), [(0, 700), (0, 700), (0, 104), (0, 700)]) == [1, 1, 1, 3]


def test_a_large_frame_takes_several_opportunities() -> None:
    # 4000 bytes take 1504 at 1 ms, 1504 at 3 ms and 992 of the second opportunity at 3 ms, which has 512 left.
    assert delivery_times(traced_direction(), [(0, 4000), (0, 512), (0, 1)]) == [3, 3, 10]


def test_an_unused_opportunity_expires() -> None:
    assert delivery_times(traced_direction(), [(3, 100), (11, 100), (12, 100), (13, 100)]) == [10, 13, 13, 20]


def test_the_delay_adds_to_the_traces_times() -> None:
    assert delivery_times(traced_direction(delay=5 * MILLISECOND), [(0, 100)]) == [6]


def test_the_queue_holds_its_limit_and_drops_the_rest() -> None:
    wire = traced_direction(queue=3008)
    assert [wire.offer(0, numbered(n, 1504)) for n in range(3)] == [Outcome.ACCEPTED] * 2 + [Outcome.QUEUE]
    assert wire.queued(0) == (3008, 2)
    assert wire.queued(MILLISECOND) == (1504, 1)
    assert wire.offer(MILLISECOND, numbered(3, 1504)) is Outcome.ACCEPTED


def test_a_changed_delay_continues_the_trace_and_another_trace_starts_when_the_wire_is_idle() -> None:
    wire = traced_direction()
    files = {"up.trace": TRACE, "slow.trace": "2\n"}
    wire.offer(0, numbered(0, 1504))
    wire.change(2 * MILLISECOND, Impairment(rate_trace="up.trace", delay=1), files)
    wire.offer(2 * MILLISECOND, numbered(1, 1504))
    wire.offer(2 * MILLISECOND, numbered(2, 1504))
    wire.offer(2 * MILLISECOND, numbered(3, 1504))
    wire.change(4 * MILLISECOND, Impairment(rate_trace="slow.trace"), files)
    wire.offer(4 * MILLISECOND, numbered(4, 1504))
    delivered = [due for due, _ in run_schedule(wire, [])]
    assert delivered == [MILLISECOND, 3 * MILLISECOND + 1, 3 * MILLISECOND + 1, 10 * MILLISECOND + 1, 12 * MILLISECOND]


def test_the_mean_rate_decides_the_queue() -> None:
    text = "\n".join(str(index // 100 + 1) for index in range(1000))  # 100 frames per millisecond: 1.2 Gbit/s
    assert parse_delivery_trace(text, "t").rate == 1_203_200_000
    assert traced_direction(text, delay=10 * MILLISECOND).queue == (3_008_000, 0)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("1\n2\nx\n", 3, "'x'"),
        ("1\n\n2\n", 2, "an empty line"),
        ("5\n4\n", 2, "4 after 5"),
        ("1\n-2\n", 2, "'-2'"),
        ("1\n2.5\n", 2, "'2.5'"),
        ("1\n" + "9" * 30, 2, "'9999"),
        ("", 0, "no line"),
        ("0\n0\n", 2, "a last time of 0 ms"),
    ],
)
def test_an_invalid_line_is_reported_with_its_file(text: str, line: int, expected: str) -> None:
    with pytest.raises(BrokenFileError) as caught:
        traced_direction(text)
    assert caught.value.line == line
    location = f"up.trace, line {line}" if line else "up.trace"
    assert str(caught.value).startswith(f"{location}: found {expected}")


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=10).map(sorted).filter(lambda times: times[-1] > 0),
    st.lists(st.tuples(st.integers(0, 15), st.integers(20, 5000)), min_size=1, max_size=30),
)
def test_no_opportunity_delivers_more_than_its_bytes(times: list[int], frames: list[tuple[int, int]]) -> None:
    wire = traced_direction("\n".join(map(str, times)), queue=10**6)
    now, schedule = 0, []
    for gap, size in frames:
        now += gap
        schedule.append((now, size))
    delivered_at = delivery_times(wire, schedule)
    assert all(later >= earlier for earlier, later in pairwise(delivered_at))
    assert all(due > offered_at for due, (offered_at, _) in zip(delivered_at, schedule, strict=True))
    for index, due in enumerate(delivered_at):
        rounds, remainder = divmod(round(due), times[-1])
        assert remainder in times or (remainder == 0 and rounds)
        # The bytes delivered so far fit into the opportunities so far.
        opportunities = rounds * len(times) + sum(time <= remainder for time in times)
        assert sum(size for _, size in schedule[: index + 1]) <= opportunities * OPPORTUNITY_SIZE

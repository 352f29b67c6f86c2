"""Filters: conditions of rules, applied to captured frames."""

from __future__ import annotations

import pytest

from testbed.errors import TestbedError
from testbed.fabric import pcapng
from testbed.fates.tokens import RuleError
from testbed.observe.decoding.capture_reader import CaptureReader, Frame
from testbed.observe.decoding.frame_filter import Filter
from tests.unit.observe.emp_captures import ack, capture, data

SECOND = 1_000_000_000


def frames(*, nics: bool = True) -> list[Frame]:
    """Return data from n1 to n2 and its acknowledgement, each captured at both ends, a second apart."""
    records: list[tuple[int, int, bytes, pcapng.Bound, str]] = [
        (0, 1 * SECOND, data(7, 1, b"x"), "outbound", ""),
        (1, 2 * SECOND, data(7, 1, b"x"), "inbound", ""),
        (1, 3 * SECOND, ack(7, 1), "outbound", ""),
        (0, 4 * SECOND, ack(7, 1), "inbound", ""),
    ]
    return CaptureReader("test").feed(capture(records, nics=nics))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("emp", [0, 1, 2, 3]),
        ("emp.type == 3", [2, 3]),
        ("emp.type == 2 and emp.message in (6, 7) and not emp.flags.last", [0, 1]),
        ("eth.src == 02:00:00:00:00:02", [2, 3]),
        ("tcp or frame.len < 43", [2, 3]),
        ("direction == forward", [0, 1]),
        ("direction != forward and emp", [2, 3]),
        ('link == "n1:eth0--n2:eth0"', [0, 1, 2, 3]),
        ("link == other", []),
        ("after(2s)", [2, 3]),
        ("before(1s) or between(3s, 4s)", [0, 3]),
    ],
)
def test_a_filter_selects_frames_by_a_condition_and_times_since_the_first(text: str, numbers: list[int]) -> None:
    all_frames = frames()
    condition = Filter(text)
    # Frames arrive in several batches.
    assert [*condition.select(all_frames[:1]), *condition.select(all_frames[1:])] == [
        all_frames[number] for number in numbers
    ]


@pytest.mark.parametrize(
    ("text", "message"), [("link == x", "link"), ("emp and not direction == forward", "direction")]
)
def test_a_filter_on_data_that_the_capture_lacks_is_rejected(text: str, message: str) -> None:
    with pytest.raises(
        TestbedError, match=f"the filter tests the {message}, which the capture does not record for n1:eth0"
    ):
        Filter(text).select(frames(nics=False))


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("emp.tpye == 3", 1, "no field is called 'emp.tpye' — did you mean 'emp.type'?"),
        ("emp and nth(3)", 9, "nth() counts frames on a link"),
        ("(emp or every(3, flow))", 9, "every() counts frames on a link"),
        ("emp and between(2, 3)", 9, "between() counts frames"),
        ("emp or", 7, "found the filter's end, expected a condition"),
        ("", 1, "found the filter's end, expected a condition"),
        ("emp arp", 5, "expected 'and', 'or' or the filter's end"),
        ("drop emp", 1, "no field is called 'drop'"),
        ("emp.type = 3", 10, "'=' is not allowed in a filter"),
    ],
)
def test_an_invalid_filter_is_an_error_with_its_column(text: str, column: int, message: str) -> None:
    with pytest.raises(RuleError) as raised:
        Filter(text)
    first, shown_line, marker_line = str(raised.value).split("\n")
    assert first.startswith(f"filter, column {column}: ")
    assert message in first
    assert shown_line == f"  {text}"
    assert marker_line.index("^") == column + 1
    assert raised.value.exit_code == 2

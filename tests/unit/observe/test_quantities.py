"""Keys of rows: units, points and measures, and whether less or more is better."""

from __future__ import annotations

import math

import pytest

from testbed.observe.format.quantities import Sense, format_time, format_value, heading, is_point, sense_of


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [("p50_ns", 23_456, "23.46 us"), ("p50_ns", 7, "7 ns"), ("took_ns", 2.5e9, "2.5 s"), ("size_bytes", 65536, "65,536 B"),
     ("bandwidth_bit_s", 8.8e8, "880 Mbit/s"), ("messages_per_s", 96_500, "96.5 k"), ("messages_per_s", 12.0, "12"),
     ("count", 1000, "1,000"), ("fairness", 0.98765, "0.9877"), ("node", "n1", "n1"), ("p50_ns", None, ""),
     ("passed", True, "True"), ("p50_ns", math.inf, "inf"), ("p50_ns", 10**400, str(10**400))],
)  # fmt: skip
def test_a_value_is_shown_with_its_unit(key: str, value: object, text: str) -> None:
    assert format_value(key, value) == text


def test_a_heading_has_no_unit_and_times_have_the_largest_fitting_unit() -> None:
    assert [heading(key) for key in ("p50_ns", "aggregate_bit_s", "requests_per_s", "o_s_ns")] == [
        "p50", "aggregate", "requests/s", "o s",
    ]  # fmt: skip
    assert [format_time(value) for value in (0, 999, 1000, 1e6, -2e9)] == ["0 ns", "999 ns", "1 us", "1 ms", "-2 s"]


@pytest.mark.parametrize(
    ("key", "sense"),
    [("p99_ns", Sense.LESS), ("cpu_ns", Sense.LESS), ("asked_again", Sense.LESS), ("bandwidth_bit_s", Sense.MORE),
     ("keys_per_s", Sense.MORE), ("fairness", Sense.MORE), ("count", Sense.NONE), ("moved_bytes", Sense.NONE)],
)  # fmt: skip
def test_lower_times_and_higher_rates_are_better(key: str, sense: Sense) -> None:
    assert sense_of(key) is sense


def test_texts_and_varied_parameters_are_points_and_results_are_not() -> None:
    assert is_point("pattern", "one-way")
    assert is_point("anything", "text")
    assert is_point("size_bytes", 64)
    assert not is_point("p50_ns", 64)
    assert not is_point("size_bytes", [64])

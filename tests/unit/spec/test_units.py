"""Quantities with units, in the notation of tc."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec import units
from testbed.spec.units import UnitError, parse_duration, parse_probability, parse_rate, parse_size

_QUANTITIES = st.integers(0, units.MAX_QUANTITY)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("10us", 10_000), ("10 us", 10_000), ("10µs", 10_000), ("10USECS", 10_000), ("1.5ms", 1_500_000),
        ("3s", 3 * 10**9), ("2secs", 2 * 10**9), ("7ns", 7), (".5us", 500), ("1e3us", 10**6), ("0", 0), (0, 0),
        ("5min", 300 * 10**9), ("1.5h", 5400 * 10**9), ("2H", 7200 * 10**9),
    ],
)  # fmt: skip
def test_a_duration_is_an_integer_number_of_nanoseconds(text: object, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1gbit", 10**9), ("1.28gbit", 1_280_000_000), ("100 Mbit/s", 10**8), ("10Gbit/s", 10**10), ("5bit", 5),
        ("1mbps", 8 * 10**6), ("1bps", 8), ("1kibit", 1024), ("1mibps", 8 * 2**20), ("2tbit", 2 * 10**12), ("0", 0),
    ],
)  # fmt: skip
def test_a_rate_is_an_integer_number_of_bits_per_second_and_bps_are_bytes_as_in_tc(text: object, bits: int) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1500, 1500), ("1500", 1500), ("64KiB", 65_536), ("64k", 65_536), ("64kB", 65_536), ("1MiB", 2**20),
        ("1m", 2**20), ("2GB", 2**31), ("8b", 8), ("8kbit", 1024), ("1.5k", 1536),
    ],
)  # fmt: skip
def test_a_size_is_an_integer_number_of_bytes_and_k_is_1024_as_in_tc(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("0.05", 0.05), (0.05, 0.05), ("100%", 1.0), (0, 0.0), (1, 1.0), ("0.1 %", 0.001)]
)
def test_a_probability_is_a_share_or_percent(text: object, share: float) -> None:
    assert parse_probability(text) == share


@pytest.mark.parametrize("text", ["10", 10, 2.5, "3 parsecs", "10us extra", "", "us", True, None])
def test_an_invalid_duration_lists_the_units(text: object) -> None:
    with pytest.raises(UnitError, match="ns, us, ms, s"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["5m", "5 M"])
def test_an_ambiguous_unit_is_an_error(text: str) -> None:
    with pytest.raises(UnitError, match="could be either '5min' or '5ms'"):
        parse_duration(text)
    assert not re.fullmatch(units.DURATION_PATTERN, text)


@pytest.mark.parametrize("text", ["0", 0, "0mbit", 0.0])
def test_a_rate_of_0_is_rejected_with_the_forms_for_unlimited_and_blocked(text: object) -> None:
    with pytest.raises(UnitError, match="'unlimited'; to block all frames, use a loss of '100%'"):
        units.parse_limit(text)


@pytest.mark.parametrize("text", ["unlimited", " Unlimited "])
def test_an_unlimited_rate_is_a_word(text: str) -> None:
    assert units.parse_limit(text) == 0
    assert re.fullmatch(units.LIMIT_PATTERN, text)


@pytest.mark.parametrize("text", ["-1mbit", float("nan"), "nan", float("inf"), "inf", -5, "1mb/s", "9" * 100 + "bit"])
def test_a_rate_is_neither_negative_nor_nan_nor_infinite(text: object) -> None:
    with pytest.raises(UnitError):
        parse_rate(text)


@pytest.mark.parametrize("text", ["101%", 1.01, "-1%", float("nan"), "five", "5 percent", False])
def test_an_invalid_probability_is_rejected(text: object) -> None:
    with pytest.raises(UnitError, match="0%"):
        parse_probability(text)


def test_a_number_above_one_is_rejected_with_the_percentage() -> None:
    with pytest.raises(UnitError, match="did you mean '5%'"):
        parse_probability(5)


@pytest.mark.parametrize(("parse", "text"), [(parse_duration, "0.5ns"), (parse_rate, "0.1bit"), (parse_size, "0.3B")])
def test_a_fraction_of_the_base_unit_is_an_error_not_a_rounding(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(UnitError, match="whole number"):
        parse(text)


def test_a_misspelt_unit_gets_the_nearest() -> None:
    with pytest.raises(UnitError, match="did you mean '100mbit"):
        parse_rate("100mbits")


def test_values_beyond_64_bits_are_rejected() -> None:
    with pytest.raises(UnitError, match="at most"):
        parse_rate("99999999999tbit")
    with pytest.raises(UnitError, match="at most"):
        parse_duration("1e999us")


@given(_QUANTITIES)
def test_a_duration_survives_writing_and_reading(value: int) -> None:
    assert parse_duration(units.format_duration(value)) == value
    assert re.fullmatch(units.DURATION_PATTERN, units.format_duration(value))


@given(_QUANTITIES)
def test_a_rate_survives_writing_and_reading(value: int) -> None:
    assert parse_rate(units.format_rate(value)) == value
    assert re.fullmatch(units.RATE_PATTERN, units.format_rate(value))


@given(_QUANTITIES)
def test_a_limit_survives_writing_and_reading(value: int) -> None:
    assert units.parse_limit(units.format_limit(value)) == value
    assert re.fullmatch(units.LIMIT_PATTERN, units.format_limit(value))


@given(_QUANTITIES)
def test_a_size_survives_writing_and_reading(value: int) -> None:
    assert parse_size(units.format_size(value)) == value
    assert re.fullmatch(units.SIZE_PATTERN, units.format_size(value))


@given(st.floats(0, 1))
def test_a_probability_survives_writing_and_reading(value: float) -> None:
    assert parse_probability(units.format_probability(value)) == value
    assert parse_probability(value) == value


def test_quantities_are_formatted_with_the_largest_fitting_unit() -> None:
    assert units.format_duration(1500) == "1.5us"
    assert units.format_rate(1_280_000_000) == "1.28gbit"
    assert units.format_size(65_536) == "64KiB"
    assert units.format_size(1500) == "1500B"
    assert units.format_probability(0.05) == "5%"
    assert units.format_duration(0) == "0s"

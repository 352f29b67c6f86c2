"""Jitter, tested on the delays of frames far enough apart that none waits for another."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right

import pytest

from testbed.fates.jitter import SCALE, normal_table, pareto_table, parse_table, parse_trace
from testbed.fates.text_files import BrokenFileError
from testbed.spec.layout import Impairment
from tests.unit.fates.statistical_checks import check_distribution, check_mean
from tests.unit.fates.wire_frames import MILLISECOND, SECOND, direction, fates_of, numbered

DELAY, SPREAD = 10 * MILLISECOND, MILLISECOND


def deviations(distribution: str, count: int = 6_000, text: str = "") -> list[int]:
    """Return each frame's delay beyond the base delay, in nanoseconds."""
    file = "j.dist" if text else ""
    impairment = Impairment(delay=DELAY, jitter=SPREAD, distribution=distribution, jitter_file=file)
    schedule = [(index * SECOND, numbered(index)) for index in range(count)]
    delivered, log = fates_of(impairment, schedule, files={file: text})
    assert log == []  # jitter is not logged
    return [due - index * SECOND - DELAY for index, (due, _) in enumerate(delivered)]


def test_uniform_jitter_is_uniformly_distributed() -> None:
    sample = deviations("uniform")
    assert -SPREAD <= min(sample) < -SPREAD * 0.99
    assert SPREAD >= max(sample) > SPREAD * 0.99
    check_distribution(sample, lambda value: (value + SPREAD) / (2 * SPREAD), "uniform jitter")


def test_normal_jitter_has_the_configured_standard_deviation() -> None:
    sample = deviations("normal")
    check_distribution(sample, lambda value: statistics.NormalDist(0, SPREAD).cdf(value), "normal jitter")
    # The standard error of a standard deviation of n normal values is sigma / sqrt(2n).
    check_mean(statistics.stdev(sample), SPREAD, SPREAD / math.sqrt(2 * len(sample)), "its spread")


def test_pareto_jitter_is_drawn_from_netems_table() -> None:
    sample = deviations("pareto")
    table = sorted(pareto_table())
    assert set(sample) <= {(SPREAD * value + SCALE // 2) // SCALE for value in table}
    check_distribution(
        sample,
        lambda value: bisect_right(table, math.ceil((value + 0.5) * SCALE / SPREAD)) / len(table),
        "pareto jitter",
    )
    # Pareto of shape 3, shifted and scaled: the mean of (u^(-1/3) - 1.5) * 4/3 is 0, and truncation at +4 lowers it.
    assert statistics.fmean(table) / SCALE == pytest.approx(-0.0335, abs=0.001)


def test_a_tables_entries_are_equally_likely() -> None:
    sample = deviations("table", text="# two values\n -8192 4096\n 4096\n4096\n")
    assert set(sample) == {-SPREAD, SPREAD // 2}
    check_mean(
        sample.count(-SPREAD) / len(sample),
        0.25,
        math.sqrt(0.25 * 0.75 / len(sample)),
        "share of the first entry",
    )


def test_the_normal_table_is_symmetric_and_exact() -> None:
    table = normal_table()
    assert len(table) == 4096
    assert [-value for value in reversed(table)] == list(table) == sorted(table)
    normal = statistics.NormalDist()
    assert all(abs(value - normal.inv_cdf((index + 0.5) / 4096) * SCALE) <= 0.5001 for index, value in enumerate(table))


def test_a_trace_gives_the_directions_frames_their_delays_in_turn() -> None:
    impairment = Impairment(delay=DELAY, distribution="trace", jitter_file="j.txt")
    schedule = [(index * SECOND, numbered(index, source=2 + index % 2 * 2)) for index in range(5)]
    delivered, _ = fates_of(impairment, schedule, files={"j.txt": "0\n1.5ms\n7us\n"})
    assert [due - DELAY - index * SECOND for index, (due, _) in enumerate(delivered)] == [
        0,
        1_500_000,
        7_000,
        0,
        1_500_000,
    ]


def test_a_delay_never_becomes_negative() -> None:
    impairment = Impairment(delay=1000, jitter=SPREAD, distribution="uniform")
    delivered, _ = fates_of(impairment, [(index * SECOND, numbered(index)) for index in range(200)])
    assert min(due - index * SECOND for index, (due, _) in enumerate(delivered)) == 0


def test_jitter_depends_on_flow_and_number_only() -> None:
    one_flow = deviations("normal", 50)
    impairment = Impairment(delay=DELAY, jitter=SPREAD, distribution="normal")
    schedule = [(index * SECOND, numbered(index, source=2 + index % 2 * 2)) for index in range(100)]
    delivered, _ = fates_of(impairment, schedule)
    mixed = [due - index * SECOND - DELAY for index, (due, _) in enumerate(delivered)]
    assert len({*mixed[::2], *mixed[1::2]}) > 90
    schedule = [(index * SECOND, frame) for index, (_, frame) in enumerate(schedule[::2])]
    delivered, _ = fates_of(impairment, schedule)
    assert [due - index * SECOND - DELAY for index, (due, _) in enumerate(delivered)] == mixed[::2] != one_flow


def test_uniform_jitter_takes_every_nanosecond() -> None:
    impairment = Impairment(delay=100, jitter=2, distribution="uniform")
    delivered, _ = fates_of(impairment, [(index * 1000, numbered(index)) for index in range(500)])
    offsets = [due - index * 1000 - 100 for index, (due, _) in enumerate(delivered)]
    assert sorted(set(offsets)) == [-2, -1, 0, 1, 2]


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("1 2\n3 x\n", 2, "'x'"),
        ("1\n\n40000", 3, "'40000'"),
        ("1.5", 1, "'1.5'"),
        ("", 0, "no entry"),
        ("# nothing\n", 0, "no entry"),
    ],
)
def test_an_invalid_table_is_reported_with_file_and_line(text: str, line: int, expected: str) -> None:
    with pytest.raises(BrokenFileError) as caught:
        parse_table(text, "my.dist")
    assert caught.value.line == line
    assert str(caught.value).startswith(
        f"my.dist, line {line}: found {expected}" if line else f"my.dist: found {expected}"
    )


@pytest.mark.parametrize(("text", "line"), [("1ms\n5\n", 2), ("1ms\n\n2ms", 2), ("-1ms", 1), ("", 0)])
def test_an_invalid_trace_is_reported_with_file_and_line(text: str, line: int) -> None:
    with pytest.raises(BrokenFileError, match=r"my\.txt") as caught:
        parse_trace(text, "my.txt")
    assert caught.value.line == line


def test_a_file_whose_text_was_not_given_is_named() -> None:
    with pytest.raises(Exception, match=r"the file j\.txt is missing"):
        direction(Impairment(distribution="trace", jitter_file="j.txt"))

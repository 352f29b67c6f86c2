"""Ratios to the floor and targets, computed from the rows of the cluster benchmark."""

from collections.abc import Sequence

import pytest

from benchmarks.cluster import commands, large_clusters
from benchmarks.cluster.stars import BRING_UP
from benchmarks.cluster.targets import ratios, targets
from benchmarks.harness.rows import Row


def star(contender: str, hosts: int, samples: Sequence[float]) -> Row:
    return Row("star", contender, BRING_UP, hosts, "s", tuple(samples), {})


def is_reached(rows: Sequence[Row], name: str) -> bool | None:
    return next(target.reached for target in targets(rows) if target.name == name)


def test_a_ratio_is_computed_from_medians_and_its_range_from_single_rounds() -> None:
    (ratio,) = ratios([star("floor", 100, [1.0, 2.0, 4.0]), star("testbed", 100, [3.0, 3.0, 4.0])])
    assert (ratio.value, ratio.low, ratio.high) == (1.5, 1.0, 3.0)


def test_a_size_without_a_floor_measurement_has_no_ratio() -> None:
    assert ratios([star("floor", 50, [1.0]), star("testbed", 100, [1.0])]) == []


@pytest.mark.parametrize(("seconds", "expected"), [(2.0, True), (2.01, False)])
def test_the_limit_at_a_hundred_hosts_is_twice_the_floor(seconds: float, expected: bool) -> None:
    rows = [star("floor", 100, [1.0]), star("testbed", 100, [seconds])]
    assert is_reached(rows, "bring-up of 100 hosts over the floor's") is expected


@pytest.mark.parametrize(("at_500", "expected"), [(1.8, True), (1.81, False), (1.2, False)])
def test_the_ratio_is_flat_if_its_maximum_is_within_a_fifth_of_its_minimum(at_500: float, expected: bool) -> None:
    rows = [star("floor", hosts, [1.0]) for hosts in (10, 50, 500)]
    rows += [star("testbed", 10, [9.0]), star("testbed", 50, [1.5]), star("testbed", 500, [at_500])]
    assert is_reached(rows, "bring-up: the ratio flat from 50 to 500") is expected


def test_unmeasured_targets_are_neither_reached_nor_missed() -> None:
    assert {target.reached for target in targets([])} == {None}


@pytest.mark.parametrize(("seconds", "expected"), [(3.6, True), (3.8, False)])
def test_the_limit_of_a_star_of_a_thousand_is_a_quarter_and_half_a_second_above_the_floor(
    seconds: float, expected: bool
) -> None:
    rows = [
        Row("large", large_clusters.REFERENCE, BRING_UP, 1_000, "s", (2.5, 2.4, 9.0), {}),
        Row("large", large_clusters.UP, commands.WALL, 1_000, "s", (seconds, 3.0, 20.0), {}),
    ]
    assert is_reached(rows, "testbed up star-1000, beyond 1.25 × the floor's") is expected

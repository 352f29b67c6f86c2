"""Settings of workloads: conversion of text to values, and reports of all errors at once."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import pytest

from testbed.errors import DescriptionError
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.lookup import choose
from testbed.workloads.mpi_logp import LogP
from testbed.workloads.workload_settings import (
    Duration,
    Rate,
    Share,
    Size,
    Sizes,
    parse_settings,
    parse_sizes,
    split_settings,
)


class EverySetting(Workload):
    """Workload with one setting of each type."""

    count: int = 1
    factor: float = 1.0
    name: str = "x"
    quick: bool = False
    pattern: Literal["first", "second"] = "first"
    wait: Duration = 0
    size: Size = 4
    speed: Rate = 0
    share: Share = 0.5
    sizes: Sizes = (1, 2)
    several: tuple[int, ...] = (1,)
    limit: int | None = None


class RequiredSetting(Workload):
    """Workload with a setting that is required and must not be 0."""

    count: int
    other: int = 1

    def __post_init__(self) -> None:
        if not self.count:
            raise ValueError("count must not be 0")


async def function_workload(comm: Comm, node: Node, *, count: int = 3, wait: Duration = 0) -> int:  # noqa: ARG001
    return count + wait


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "7", 7),
        ("factor", "2.5", 2.5),
        ("name", "7", "7"),
        ("quick", "yes", True),
        ("quick", "false", False),
        ("pattern", "second", "second"),
        ("wait", "10us", 10_000),
        ("size", "64KiB", 65536),
        ("speed", "1gbit", 10**9),
        ("share", "5%", 0.05),
        ("sizes", "0,4,1KiB", (0, 4, 1024)),
        ("sizes", "4..32,100", (4, 8, 16, 32, 100)),
        ("several", "3,4", (3, 4)),
        ("limit", "9", 9),
        ("limit", "none", None),
    ],
)
def test_a_text_is_converted_to_its_value(name: str, text: str, value: object) -> None:
    values = parse_settings(EverySetting, {name: text}, "it")
    assert values == {name: value}
    assert type(values[name]) is type(value)


def test_values_of_the_declared_type_are_not_converted() -> None:
    settings = asdict(EverySetting(count=5, wait=7, sizes=(9,), limit=None))
    assert asdict(EverySetting(**parse_settings(EverySetting, settings, "it"))) == settings


def test_all_errors_are_reported_at_once_with_the_expected_value_and_the_nearest_name() -> None:
    with pytest.raises(DescriptionError) as caught:
        parse_settings(
            EverySetting, {"cuont": "1", "wait": "10", "count": "x", "pattern": "secnod", "quick": "perhaps"}, "it"
        )
    message = str(caught.value)
    assert "5 problems" in message
    for part in ("did you mean 'count'?", "a duration", "a whole number", "did you mean 'second'?", "one of true"):
        assert part in message


def test_a_setting_without_a_default_is_required_and_an_unsupported_type_is_rejected() -> None:
    with pytest.raises(DescriptionError, match="count: expected a value"):
        choose(RequiredSetting)
    with pytest.raises(DescriptionError, match="count must not be 0"):
        choose(RequiredSetting, {"count": "0"})
    assert choose(RequiredSetting, {"count": "2"}).settings == {"count": 2, "other": 1}


def test_keyword_arguments_of_a_function_are_its_settings() -> None:
    assert choose(function_workload, {"wait": "1us"}).settings == {"wait": 1000}
    with pytest.raises(DescriptionError, match="unknown setting 'tag'"):
        choose(function_workload, {"tag": 1})


def test_a_workload_with_given_settings_accepts_no_others() -> None:
    assert choose(RequiredSetting(count=3)).settings == {"count": 3, "other": 1}
    with pytest.raises(DescriptionError, match="already has its settings"):
        choose(RequiredSetting(count=3), {"count": 4})


def test_settings_on_the_command_line_are_pairs() -> None:
    assert split_settings(("a=1", "b-c=x=y")) == {"a": "1", "b_c": "x=y"}
    with pytest.raises(DescriptionError, match="NAME=VALUE"):
        split_settings(("nothing",))


def test_ranges_of_sizes_must_increase() -> None:
    with pytest.raises(ValueError, match="sizes that grow"):
        parse_sizes("8..4")
    assert parse_sizes("0..4") == (0, 1, 2, 4)


def test_a_list_of_sizes_must_not_be_empty() -> None:
    with pytest.raises(DescriptionError, match=r"sizes.*one or more sizes"):
        parse_settings(EverySetting, {"sizes": []}, "every")


def test_a_gap_needs_two_different_bursts() -> None:
    with pytest.raises(DescriptionError, match="bursts: two or more different ones"):
        choose(LogP, {"bursts": "4,4"})

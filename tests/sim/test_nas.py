"""NAS kernels in the simulation: verified results, times of schedules, and rejected settings. With TESTBED_LONG=1 every
kernel over every protocol, and all classes of the Open-MX paper."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import pytest

import testbed
from testbed import Cluster
from testbed.errors import DescriptionError, TestbedError
from testbed.workloads.nas.problem_classes import MG

LONG = bool(os.environ.get("TESTBED_LONG"))


def row(nodes: int = 4, protocol: str = "am2", **settings: object) -> dict[str, Any]:
    cluster = Cluster.star(nodes, delay="5us", rate="1gbit")
    (measured,) = testbed.run(cluster, "nas", protocol=protocol, mode="sim", settings=settings).rows
    return dict(measured)


@pytest.mark.parametrize(
    ("kernel", "protocol"),
    [*product(["is", "cg", "mg", "ft"], ["emp", "am2", "via", "openmx"])]
    if LONG
    else [("is", "openmx"), ("cg", "via"), ("mg", "emp"), ("ft", "am2")],
)
def test_class_s_is_verified(kernel: str, protocol: str) -> None:
    measured = row(protocol=protocol, kernel=kernel)
    assert (measured["kernel"], measured["problem"], measured["ranks"], measured["verified"]) == (kernel, "S", 4, True)
    assert measured["took_ns"] > 0


def test_class_s_is_verified_over_atm() -> None:
    cluster = Cluster.star(2, kind="atm", rate="140mbit", overhead=2)
    (measured,) = testbed.run(cluster, "nas", protocol="ssam", mode="sim", settings={"kernel": "mg"}).rows
    assert (measured["ranks"], measured["verified"]) == (2, True)


@pytest.mark.parametrize("kernel", ["is", "ft", *(["cg", "mg"] if LONG else [])])
def test_class_w_is_verified(kernel: str) -> None:
    assert row(kernel=kernel, problem="W", protocol="via")["verified"]


@pytest.mark.parametrize("problem", ["S", *(["A", "B", "C"] if LONG else [])])
def test_is_is_verified_up_to_the_papers_largest_class(problem: str) -> None:
    """A takes some 5 s of a processor and 0.5 GB, B 26 s and 1.7 GB, C 140 s and 2 GB."""
    cluster = Cluster.star(4, delay="5us", rate="10gbit")
    settings = {"kernel": "is", "problem": problem}
    (actual,) = testbed.run(
        cluster, "nas", protocol="openmx", mode="sim", settings=settings, check=False, timeout=1800
    ).rows
    assert (actual["problem"], actual["ranks"], actual["verified"], actual["value"]) == (problem, 4, True, 50)


def test_ranks_above_a_power_of_two_stay_idle() -> None:
    assert row(7, kernel="ft")["ranks"] == 4


def test_a_schedule_takes_the_time_of_its_operations_at_the_given_speed() -> None:
    slow_time, fast_time = (row(kernel="mg", schedule=True, mops=mops)["took_ns"] for mops in (1, 1_000_000))
    computed = MG["S"].operations() / 4 / 1e6 * 1e9
    assert slow_time - fast_time == pytest.approx(computed, rel=0.01)
    assert "verified" not in row(kernel="is", schedule=True)


@pytest.mark.parametrize(
    ("kernel", "problem"), [("mg", "B"), *([("cg", "B"), ("ft", "B"), ("is", "B"), ("is", "C")] if LONG else [])]
)
def test_a_schedule_of_the_papers_classes_runs_on_sixteen_ranks(kernel: str, problem: str) -> None:
    measured = row(16, "via", kernel=kernel, problem=problem, schedule=True, iterations=1)
    assert (measured["ranks"], measured["schedule"]) == (16, True)


def test_invalid_settings_of_nas_are_reported() -> None:
    with pytest.raises(DescriptionError, match="one of is, cg, mg, ft"):
        row(kernel="lu")
    with pytest.raises(TestbedError, match=r"ft\.B: its checksums are not included.*schedule=true"):
        row(kernel="ft", problem="B")
    with pytest.raises(TestbedError, match=r"iterations: 0 to 4, of mg\.S"):
        row(kernel="mg", schedule=True, iterations=5)
    with pytest.raises(TestbedError, match=r"iterations: 0 to 0, of is\.S with schedule=False"):
        row(iterations=1)
    with pytest.raises(TestbedError, match=r"ft\.S runs on up to 64 ranks, not 128"):
        row(128, kernel="ft")

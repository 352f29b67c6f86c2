"""The papers' rows in dilated runs: they equal the simulation's within the measured lateness. CI runs a few rows of each
paper; TESTBED_LONG=1 all rows of two nodes, and the shapes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from protocols.am2.profile import NOW_1998
from protocols.core.profile import Profile
from protocols.emp.profile import EMP_2001
from testbed.controller.papers.reproduction import Reproduction, reproduce
from testbed.observe.comparing.paper_shapes import Compared

pytestmark = [
    pytest.mark.alone,
    pytest.mark.requires("root"),
    pytest.mark.usefixtures("machine"),
    pytest.mark.timeout(600),
]

LONG = bool(os.environ.get("TESTBED_LONG"))
ROUNDING = 20
"""Rounding of rates and half round trips, ns."""


@dataclass(frozen=True)
class Selection:
    """Runs of a paper. profile: of its hardware. crossings: maximum link crossings within a row's time. dilate: factor,
    large enough to distinguish rows of 20 us although frames of a busy machine are milliseconds late. wrong: factor of a
    wrong profile's costs."""

    protocol: str
    profile: Profile
    runs: tuple[str, ...]
    crossings: int
    dilate: int
    wrong: int = 4


EMP = Selection("emp", EMP_2001, ("latency",), 1, 250)
AM2 = Selection("am2", NOW_1998, ("logp",), 2, 100)
EMP_RUNS = ("latency", "bandwidth", "large", "large-two", "sizes", "sizes-two", "calls", "steps")
AM2_RUNS = ("logp", "unacknowledged", "unguarded", "gam", "bulk")
PAPERS = (
    [replace(EMP, runs=EMP_RUNS, dilate=200, wrong=2), replace(AM2, runs=AM2_RUNS, dilate=200, wrong=2)] if LONG else []
)


def nanoseconds(row: Compared) -> float:
    """Return a row's time in ns; for a bandwidth, the time of a kilobyte."""
    by_unit: dict[str, Callable[[float], float]] = {
        "us": lambda value: value * 1e3,
        "Mb/s": lambda value: 8e6 / value,
        "MB/s": lambda value: 1e6 / value,
    }
    return by_unit[row.row.unit](row.ours)


def times_agree(exact: Reproduction, dilated: Reproduction, crossings: int) -> bool:
    """Return whether no row is too fast, and none exceeds the simulation by more than its frames were late."""
    late = ROUNDING + crossings * max(dilated.late.values())
    rows = [pair for pair in zip(exact.rows, dilated.rows, strict=True) if pair[0].row.unit in ("us", "Mb/s", "MB/s")]
    assert rows
    return all(-ROUNDING <= nanoseconds(slow) - nanoseconds(fast) <= late for fast, slow in rows)


@pytest.mark.parametrize(
    "selection", [EMP, AM2, *PAPERS], ids=lambda selection: "-".join((selection.protocol, *selection.runs))
)
def test_rows_equal_the_simulations_within_the_lateness_but_not_a_wrong_profiles(
    selection: Selection, record_property: Callable[[str, object], None]
) -> None:
    dilated = reproduce(selection.protocol, mode="dilated", dilate=selection.dilate, runs=selection.runs)
    exact, wrong = (
        reproduce(selection.protocol, runs=selection.runs, profile=profile)
        for profile in (selection.profile, selection.profile.slowed(selection.wrong))
    )
    rows = ", ".join(f"{row.row.name} {row.error:+.1%}" for row in dilated.rows)
    record_property(
        "note",
        f"{selection.protocol} dilated {selection.dilate} times, compared with its paper: {rows}; late {dilated.late}",
    )
    assert times_agree(exact, dilated, selection.crossings)
    assert not times_agree(wrong, dilated, selection.crossings)
    if selection in PAPERS:
        assert dilated.failures == []

"""The papers' rows on real frames, where time is dilated: the simulation's, but for the lateness that the run measured.
In CI a row or two of each paper; with TESTBED_LONG=1 all that two nodes tell, and the shapes."""

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
"""Nanoseconds: of rates, and of half round trips."""


@dataclass(frozen=True)
class Selection:
    """Runs of a paper. profile: profile of its hardware. crossings: crossings of a frame in the time that a row tells, at
    most. dilate: how many times slower; wrong: the factor by which a wrong profile's costs are too high. On a busy machine
    the median frame may be milliseconds late, and rows of some 20 us must be told apart all the same."""

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
    """The time that a row tells; of a bandwidth, that of a kilobyte."""
    by_unit: dict[str, Callable[[float], float]] = {
        "us": lambda value: value * 1e3,
        "Mb/s": lambda value: 8e6 / value,
        "MB/s": lambda value: 1e6 / value,
    }
    return by_unit[row.row.unit](row.ours)


def agree(exact: Reproduction, dilated: Reproduction, crossings: int) -> bool:
    """Return whether no row's time is early, and none later than its frames were."""
    late = ROUNDING + crossings * max(dilated.late.values())
    rows = [pair for pair in zip(exact.rows, dilated.rows, strict=True) if pair[0].row.unit in ("us", "Mb/s", "MB/s")]
    assert rows
    return all(-ROUNDING <= nanoseconds(slow) - nanoseconds(fast) <= late for fast, slow in rows)


@pytest.mark.parametrize(
    "selection", [EMP, AM2, *PAPERS], ids=lambda selection: "-".join((selection.protocol, *selection.runs))
)
def test_rows_equal_those_of_the_simulation_up_to_lateness_and_those_of_a_wrong_profile_do_not(
    selection: Selection, record_property: Callable[[str, object], None]
) -> None:
    dilated = reproduce(selection.protocol, mode="dilated", dilate=selection.dilate, runs=selection.runs)
    exact, wrong = (
        reproduce(selection.protocol, runs=selection.runs, profile=profile)
        for profile in (selection.profile, selection.profile.slowed(selection.wrong))
    )
    rows = ", ".join(f"{row.row.name} {row.error:+.1%}" for row in dilated.rows)
    record_property(
        "note", f"{selection.protocol} dilated {selection.dilate} times, beside its paper: {rows}; late {dilated.late}"
    )
    assert agree(exact, dilated, selection.crossings)
    assert not agree(wrong, dilated, selection.crossings)
    if selection in PAPERS:
        assert dilated.failures == []

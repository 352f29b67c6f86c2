"""SSAM's paper compared with the simulation: tables 1 to 3, the round trip, the stream, the switch, and the shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols.core.profile import Cost
from protocols.ssam.profile import SPARCSTATION_1, SPARCSTATION_20
from protocols.ssam.sba100 import BATCH, CELL_READ, KINDS, READ_CALL, READ_TRAP, WRITE_CALL, WRITE_TRAP
from testbed.controller.papers.reproduction import Reproduction, reproduce
from testbed.observe.comparing.scores import MAX_CALIBRATION_ERROR
from tests.sim.documented_rows import rows_that_differ


@pytest.fixture(scope="module")
def ssam() -> Reproduction:
    return reproduce("ssam")


def test_the_documentation_lists_these_rows(ssam: Reproduction) -> None:
    assert rows_that_differ(ssam) == []


def test_calibrated_rows_and_shapes_are_reproduced(ssam: Reproduction) -> None:
    assert ssam.failures == []
    calibrated = [row for row in ssam.rows if row.calibrated]
    assert {row.row.name for row in calibrated} == {"switch, round trip", "switch, one way"}
    assert ssam.paper.constants == 1
    assert all(abs(row.error) <= MAX_CALIBRATION_ERROR for row in calibrated)


def test_the_median_error_of_all_predictions_is_below_ten_percent(ssam: Reproduction) -> None:
    assert sum(not row.calibrated for row in ssam.rows) >= 27
    assert ssam.overall is not None
    assert 0 < ssam.overall.median < 0.10


def test_a_further_cell_of_a_read_trap_does_not_cost_another_trap(ssam: Reproduction) -> None:
    measured = {comparison.row.name: comparison.ours for comparison in ssam.rows}
    assert BATCH == 16
    first_cell, further_cell = (
        measured["SS20 read trap, 1 cell"],
        measured["SS20 read trap, each further cell"],
    )
    work = SPARCSTATION_20.work
    assert first_cell - further_cell == pytest.approx(work[READ_TRAP].fixed / 1e3)


def test_every_item_of_the_kernel_has_a_cost_on_both_machines() -> None:
    for profile in (SPARCSTATION_20, SPARCSTATION_1):
        assert all(profile.work[kind].fixed > 0 for kind in KINDS)


def test_the_shape_fails_if_reading_a_cell_is_as_fast_as_writing() -> None:
    faster = replace(SPARCSTATION_20, work={**SPARCSTATION_20.work, CELL_READ: SPARCSTATION_20.work[WRITE_TRAP]})
    reproduction = reproduce("ssam", profile=faster, runs=["ss20"])
    assert any(sentence.startswith("reading a cell takes") for sentence in reproduction.failures)


def test_the_shape_fails_if_a_system_call_is_as_cheap_as_a_trap() -> None:
    cheap = {kind: Cost(400) for kind in (WRITE_CALL, READ_CALL)}
    faster = replace(SPARCSTATION_20, work={**SPARCSTATION_20.work, **cheap})
    reproduction = reproduce("ssam", profile=faster, runs=["ss20"])
    assert sum("by the system call" in sentence for sentence in reproduction.failures) == 2

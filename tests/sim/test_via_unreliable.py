"""M-VIA's unreliable delivery: under loss, messages are lost and the checkers say so; the reliable levels lose none."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.runs import read_reports
from testbed.errors import TestbedError
from testbed.observe.recorded import read_run

UNRELIABLE, RELIABLE = 1, (2, 4)


def run_checked(folder: Path, reliability: int, loss: str) -> tuple[Report, str]:
    """Report of a run's checkers, and the error with which the run failed, or an empty text."""
    cluster = Cluster.star(2, delay="20us", rate="1gbit", loss=loss, seed=3)
    failure = ""
    try:
        testbed.run(
            cluster, "random", protocol="via", mode="sim", firmware={"reliability": reliability}, check=True,
            settings={"messages": 60}, output=folder, timeout=10,
        )  # fmt: skip
    except TestbedError as error:
        failure = str(error)
    (report,) = read_reports(read_run(folder))
    return report, failure


def test_a_lost_frame_loses_messages_and_the_checkers_name_them(tmp_path: Path) -> None:
    report, failure = run_checked(tmp_path / "run", UNRELIABLE, "1%")
    assert "has sent a message that was lost" in failure
    assert "nothing lost" in report.failed
    assert report.checks["nothing lost"].violations
    assert not {"content", "order", "nothing twice"} & set(report.failed), "what came was sound"


@pytest.mark.parametrize(("reliability", "loss"), [(UNRELIABLE, "0%"), *[(level, "1%") for level in RELIABLE]])
def test_nothing_is_lost_without_loss_or_at_a_reliable_level(tmp_path: Path, reliability: int, loss: str) -> None:
    report, failure = run_checked(tmp_path / "run", reliability, loss)
    assert not failure
    assert report.passed, report.to_text()
    assert report.messages >= 120


def test_frames_that_come_twice_are_taken_once_at_the_unreliable_level() -> None:
    cluster = Cluster.star(2, delay="20us", rate="1gbit", duplicate="10%", seed=3)
    result = testbed.run(
        cluster, "random", protocol="via", mode="sim", firmware={"reliability": UNRELIABLE}, check=True,
        settings={"messages": 60}, timeout=10,
    )  # fmt: skip
    assert result.checks is not None
    assert sum(counters["duplicates"] for counters in result.counters.values()) > 10

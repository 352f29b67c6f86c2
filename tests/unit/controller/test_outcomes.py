"""Findings about frames lost by NICs in node processes."""

from __future__ import annotations

import pytest

from testbed.controller.verdict.outcomes import JudgedOutcome, nic_findings
from testbed.controller.verdict.thresholds import TABLE, Table
from testbed.controller.verdict.verdicts import Grade, verdict_of
from testbed.runtime.nodes.node_process import NicReport

REPORT = NicReport(counted={}, received=10, dropped=0, unsent=0, down=0, cpu=1)


@pytest.mark.parametrize("table", [TABLE, Table(slow=10)], ids=["default", "slow"])
@pytest.mark.parametrize(
    ("dropped", "unsent", "message"),
    [
        (1, 0, "NIC lost on n1: 1 frames (1 that its process did not read in time)"),
        (0, 2, "NIC lost on n1: 2 frames (2 that the kernel did not take)"),
        (1, 2, "NIC lost on n1: 3 frames (1 that its process did not read in time, 2 that the kernel did not take)"),
    ],
)
def test_a_frame_lost_at_a_node_makes_the_run_invalid_and_is_reported_with_its_cause(
    dropped: int, unsent: int, message: str, table: Table
) -> None:
    nic_report = NicReport(counted={}, received=10, dropped=dropped, unsent=unsent, down=0, cpu=1)
    findings = nic_findings({"n1": nic_report, "n2": REPORT}, ["n1", "n2"], table)
    assert [(finding.link, finding.grade) for finding in findings] == [("n1", Grade.INVALID), ("n2", Grade.TRUSTED)]
    assert JudgedOutcome({}, {}, verdict_of(findings)).invalid == message


def test_frames_for_an_interface_that_was_down_degrade_the_run() -> None:
    nic_report = NicReport(counted={}, received=10, dropped=0, unsent=0, down=4, cpu=1)
    verdict = verdict_of(nic_findings({"n1": nic_report}, ["n1"], TABLE))
    assert verdict.grade is Grade.DEGRADED
    assert [finding.measured for finding in verdict.of("n1", what="NIC down")] == [4]
    assert JudgedOutcome({}, {}, verdict).invalid == ""


def test_frames_for_an_interface_taken_down_by_a_fault_do_not_degrade_the_run() -> None:
    nic_report = NicReport(counted={}, received=10, dropped=0, unsent=0, down=4, cpu=1)
    verdict = verdict_of(nic_findings({"n1": nic_report, "n2": nic_report}, ["n1", "n2"], TABLE, {"n1"}))
    assert [(finding.link, finding.what) for finding in verdict.findings if finding.grade is Grade.DEGRADED] == [
        ("n2", "NIC down")
    ]
    assert [finding.measured for finding in verdict.of("n1", what="NIC taken down")] == [4]


def test_a_node_without_a_report_is_undecided_and_does_not_change_the_verdict() -> None:
    verdict = verdict_of(nic_findings({"n1": REPORT}, ["n1", "n2"], TABLE))
    assert verdict.grade is Grade.TRUSTED
    assert [finding.link for finding in verdict.undecided] == ["n2"]

"""Verdicts of runs on several machines: the verdicts of all machines, and findings on the networks and clocks between
them."""

from __future__ import annotations

from dataclasses import asdict

from testbed.controller.runs.spread_execution import joint_verdict
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict
from testbed.machines.spread import MachineClock, Underlay

CLOCKS = {"a": MachineClock(-5, 200_000), "b": MachineClock(70, 300_000)}
QUIET = Underlay(("a", "b"), 1_000_000, 40_000, 0.0)
LOSSY = Underlay(("a", "b"), 1_000_000, 90_000, 0.05)
FINDING = {**asdict(Finding("processor", "", "", None, 0.5, "", Grade.DEGRADED)), "grade": "degraded"}


def verdict_on(*underlays: Underlay, findings: object = ()) -> Verdict:
    replies = {
        machine: {"verdict": {"seconds": 1.5, "notes": ["slow"], "findings": findings}} for machine in ("a", "b")
    }
    return joint_verdict(replies, underlays, CLOCKS)


def grades_by_link(verdict: Verdict) -> dict[tuple[str, str], tuple[object, Grade]]:
    return {(finding.what, finding.link): (finding.measured, finding.grade) for finding in verdict.findings}


def test_networks_and_clocks_between_machines_are_in_the_verdict() -> None:
    run_verdict = verdict_on(QUIET, QUIET)
    assert grades_by_link(run_verdict) == {
        ("underlay jitter", "a - b"): (40_000, Grade.TRUSTED),
        ("underlay loss", "a - b"): (0.0, Grade.TRUSTED),
        ("clock offset", "machine a"): (200_000, Grade.TRUSTED),
        ("clock offset", "machine b"): (300_000, Grade.TRUSTED),
    }
    assert (run_verdict.grade, run_verdict.seconds) == (Grade.TRUSTED, 1.5)
    assert run_verdict.notes == ("machine a: slow", "machine b: slow")


def test_the_worst_of_all_measurements_counts_and_a_loss_degrades() -> None:
    run_verdict = verdict_on(LOSSY, QUIET)
    assert grades_by_link(run_verdict)["underlay jitter", "a - b"] == (90_000, Grade.TRUSTED)
    assert grades_by_link(run_verdict)["underlay loss", "a - b"] == (0.05, Grade.DEGRADED)
    assert run_verdict.grade is Grade.DEGRADED


def test_findings_on_a_machine_name_it() -> None:
    grades = grades_by_link(verdict_on(QUIET, findings=(FINDING,)))
    assert grades["processor", "machine a"] == grades["processor", "machine b"] == (0.5, Grade.DEGRADED)


def test_an_unreachable_network_between_machines_makes_a_run_invalid() -> None:
    run_verdict = verdict_on(QUIET, Underlay(("a", "b"), 0, 0, 1.0))
    assert grades_by_link(run_verdict)["underlay loss", "a - b"] == (1.0, Grade.INVALID)

"""Verdicts of runs on several machines: those of all of them, and findings on the networks and clocks between them."""

from __future__ import annotations

from dataclasses import asdict

from testbed.controller.runs.spread_execution import joint_verdict
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict
from testbed.machines.spread import MachineClock, Underlay

CLOCKS = {"a": MachineClock(-5, 200_000), "b": MachineClock(70, 300_000)}
QUIET = Underlay(("a", "b"), 1_000_000, 40_000, 0.0)
LOSSY = Underlay(("a", "b"), 1_000_000, 90_000, 0.05)
FINDING = {**asdict(Finding("processor", "", "", None, 0.5, "", Grade.DEGRADED)), "grade": "degraded"}


def verdict(*underlays: Underlay, findings: object = ()) -> Verdict:
    replies = {
        machine: {"verdict": {"seconds": 1.5, "notes": ["slow"], "findings": findings}} for machine in ("a", "b")
    }
    return joint_verdict(replies, underlays, CLOCKS)


def graded(found: Verdict) -> dict[tuple[str, str], tuple[object, Grade]]:
    return {(finding.what, finding.link): (finding.measured, finding.grade) for finding in found.findings}


def test_networks_and_clocks_between_machines_are_in_the_verdict() -> None:
    found = verdict(QUIET, QUIET)
    assert graded(found) == {
        ("underlay jitter", "a - b"): (40_000, Grade.TRUSTED),
        ("underlay loss", "a - b"): (0.0, Grade.TRUSTED),
        ("clock offset", "machine a"): (200_000, Grade.TRUSTED),
        ("clock offset", "machine b"): (300_000, Grade.TRUSTED),
    }
    assert (found.grade, found.seconds) == (Grade.TRUSTED, 1.5)
    assert found.notes == ("machine a: slow", "machine b: slow")


def test_the_worst_of_all_measurements_counts_and_a_loss_degrades() -> None:
    found = verdict(LOSSY, QUIET)
    assert graded(found)["underlay jitter", "a - b"] == (90_000, Grade.TRUSTED)
    assert graded(found)["underlay loss", "a - b"] == (0.05, Grade.DEGRADED)
    assert found.grade is Grade.DEGRADED


def test_findings_on_a_machine_name_it() -> None:
    found = graded(verdict(QUIET, findings=(FINDING,)))
    assert found["processor", "machine a"] == found["processor", "machine b"] == (0.5, Grade.DEGRADED)


def test_a_network_that_answers_no_more_makes_a_run_invalid() -> None:
    found = verdict(QUIET, Underlay(("a", "b"), 0, 0, 1.0))
    assert graded(found)["underlay loss", "a - b"] == (1.0, Grade.INVALID)

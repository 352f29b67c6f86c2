"""Outcomes of a passing test on an invalid or degraded network: failed, skipped, xfailed, or passed with the reason.

The verdicts of simulated runs are patched here; tests/live/test_verdicts_of_tests_live.py has real ones.
"""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import pytest
from testbed.controller.verdict.verdicts import Finding, Grade, verdict_of

def add_finding(cluster, grade):
    finding = Finding("relay gap", "", "", 0.0, 7.0, "ns", grade, "the relay died and was started again")
    cluster.verdicts.append(verdict_of([finding]))
"""

TEST_OF_EACH_GRADE = (
    HEAD
    + """
@pytest.mark.cluster("star-2")
@pytest.mark.parametrize("grade", [Grade.INVALID, Grade.DEGRADED, Grade.TRUSTED], ids=lambda grade: grade.value)
def test_passes(cluster, grade):
    add_finding(cluster, grade)
"""
)
REASON = "relay gap: 7 ns (the relay died and was started again)"


def run(suite: pytest.Pytester, *options: str) -> pytest.RunResult:
    return suite.runpytest("--testbed-mode=sim", *options)


def test_a_test_fails_on_an_invalid_network_and_passes_on_a_degraded_one_with_the_reason(
    suite: pytest.Pytester,
) -> None:
    suite.makepyfile(TEST_OF_EACH_GRADE)
    result = run(suite, "-rA", "--junitxml=junit.xml")
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            f"the network was invalid: {REASON}; the test's own assertions hold",
            'to change this outcome, use on_invalid="skip", "xfail" or "ignore" in the marker, or --testbed-on-invalid',
            f"the network during the test: invalid; {REASON}",
            f"the network during the test: degraded; {REASON}",
            f"testbed: *::test_passes?sim-degraded?: the network was degraded: {REASON}",
            f"testbed: *::test_passes?sim-invalid?: the network was invalid: {REASON}",
        ]
    )
    result.stdout.no_fnmatch_line("*trusted?: the network*")
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*traceback entries are hidden*")
    cases = ElementTree.parse(suite.path / "junit.xml").iter("testcase")
    failures = {case.attrib["name"]: [part.attrib["message"] for part in case.iter("failure")] for case in cases}
    (message,) = failures.pop("test_passes[sim-invalid]")
    assert REASON in message
    assert not any(failures.values())


@pytest.mark.parametrize(
    ("action", "outcomes"),
    [
        ("fail", {"failed": 2, "passed": 1}),
        ("skip", {"skipped": 2, "passed": 1}),
        ("xfail", {"xfailed": 2, "passed": 1}),
        ("ignore", {"passed": 3}),
    ],
)
def test_options_and_the_ini_file_decide_the_outcome(
    suite: pytest.Pytester, action: str, outcomes: dict[str, int]
) -> None:
    suite.makepyfile(TEST_OF_EACH_GRADE)
    result = run(suite, f"--testbed-on-invalid={action}", f"--testbed-on-degraded={action}", "-rsx")
    result.assert_outcomes(**outcomes)
    if action in ("skip", "xfail"):
        result.stdout.fnmatch_lines([f"*the network was invalid: {REASON}", f"*the network was degraded: {REASON}"])
    suite.makeini(f"[pytest]\ntestbed_on_invalid = {action}\ntestbed_on_degraded = {action}\n")
    run(suite).assert_outcomes(**outcomes)


def test_the_marker_overrides_the_option_and_nearer_markers_override_others(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        HEAD
        + """
pytestmark = pytest.mark.cluster("star-2", on_invalid="skip")

def test_of_module(cluster):
    add_finding(cluster, Grade.INVALID)

@pytest.mark.cluster(on_invalid="ignore", on_degraded="xfail")
@pytest.mark.parametrize("grade", [Grade.INVALID, Grade.DEGRADED])
def test_of_its_own(cluster, grade):
    add_finding(cluster, grade)
"""
    )
    run(suite, "--testbed-on-invalid=fail").assert_outcomes(skipped=1, passed=1, xfailed=1)


def test_one_invalid_run_of_a_test_makes_it_fail(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        HEAD
        + """
from dataclasses import replace
from testbed.pytest_plugin import under_test

async def nothing(comm, node): ...

@pytest.mark.cluster("star-2")
def test_runs(cluster, monkeypatch):
    def run_with_losses(*arguments, inner=under_test.run, **options):
        finding = Finding("NIC lost", "n1", "", 0.0, 3.0, "frames", Grade.INVALID)
        return replace(inner(*arguments, **options), verdict=verdict_of([finding]))
    with monkeypatch.context() as patch:
        patch.setattr(under_test, "run", run_with_losses)
        cluster.run(nothing)
    cluster.run(nothing)
"""
    )
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the network was invalid: NIC lost on n1: 3 frames; the test's own assertions hold"])


def test_a_test_that_fails_by_itself_is_reported_as_usual(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        HEAD
        + """
@pytest.mark.cluster("star-2", on_invalid="skip")
def test_fails(cluster):
    add_finding(cluster, Grade.INVALID)
    assert 1 == 2

@pytest.mark.cluster("star-2")
def test_skips_the_test(cluster):
    add_finding(cluster, Grade.INVALID)
    pytest.skip("skipped by the test")
"""
    )
    result = run(suite, "-rfs")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "E *assert 1 == 2",
            f"the network during the test: invalid; {REASON}",
            "FAILED *::test_fails*",
            "SKIPPED*skipped by the test",
        ]
    )
    (folder,) = (suite.path / "testbed-artefacts").iterdir()
    assert "assert 1 == 2" in (folder / "report.txt").read_text()


def test_a_strict_run_turns_skips_into_failures(suite: pytest.Pytester) -> None:
    suite.makepyfile(TEST_OF_EACH_GRADE)
    result = run(suite, "--testbed-on-invalid=skip", "--testbed-strict")
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(['on_invalid="skip" is set, but --testbed-strict turns skips into failures'])


def test_an_invalid_outcome_is_an_error_with_the_valid_ones(suite: pytest.Pytester) -> None:
    suite.makepyfile('import pytest\n@pytest.mark.cluster("star-2", on_invalid="pass")\ndef test_it(cluster): ...\n')
    result = run(suite)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*on_invalid: found 'pass', expected 'fail', 'skip', 'xfail' or 'ignore'"])
    suite.makeini("[pytest]\ntestbed_on_degraded = pass\n")
    result = suite.runpytest_subprocess()
    result.stderr.fnmatch_lines(["*testbed_on_degraded = pass: expected fail, skip, xfail or ignore"])

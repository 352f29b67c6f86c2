"""Verdict on a test's network, and the outcome of a test that passes although its network was degraded or invalid.

The verdict covers the time from the cluster's start to the end of the test's body, and each `cluster.run`. A failed test
stays failed; its report shows the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pytest

from testbed.controller.verdict.verdicts import Finding, Grade, worst
from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.pytest_plugin import option_or_ini
from testbed.pytest_plugin.marker import Action, MarkerArguments, check_action
from testbed.pytest_plugin.under_test import ClusterUnderTest

PROPERTY: Final = "testbed-verdict"
"""Name of the report's property with the verdict on the network, as one line."""

_DEVIATING: Final = (Grade.INVALID, Grade.DEGRADED)


@dataclass(frozen=True, slots=True)
class Network:
    """Verdict on a network. grade: trusted, degraded or invalid; undecided if the test took its cluster down. reasons: a
    line for each degraded or invalid finding. notes: notes of the verdict, without effect on the grade."""

    grade: Grade
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join([self.grade.value, *self.reasons, *self.notes])

    @property
    def summary(self) -> str:
        """The grade, the first reason, and the number of further reasons."""
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        return ": ".join([self.grade.value, *self.reasons[:1]]) + more


def network_of(cluster: ClusterUnderTest) -> Network:
    """Return the verdict on the network so far: invalid if it cannot be determined, undecided if the cluster is gone."""
    findings: list[Finding] = []
    reasons: dict[str, None] = {}
    notes: tuple[str, ...] = ()
    grades: list[Grade] = []
    if cluster.mode == "live":
        try:
            verdict = cluster.network_verdict()
            findings += verdict.findings
            notes = verdict.notes
        except NotFoundError:
            grades.append(Grade.UNDECIDED)
            reasons["the cluster was taken down before the test ended: no verdict is possible"] = None
        except (TestbedError, OSError) as error:
            grades.append(Grade.INVALID)
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            reasons[f"the verdict cannot be determined: {reason}"] = None
    findings += [finding for run in cluster.verdicts for finding in run.findings]
    deviating = sorted(
        (finding for finding in findings if finding.grade in _DEVIATING), key=lambda finding: -finding.grade.severity
    )
    grade = max([*grades, worst(deviating)], key=lambda grade: grade.severity)
    for finding in deviating:
        reasons[str(finding) if finding.grade is grade else f"{finding.grade.value}: {finding}"] = None
    return Network(grade, tuple(reasons), notes)


def actions_of(config: pytest.Config, arguments: MarkerArguments) -> Mapping[Grade, Action]:
    """Return the actions by grade, from the marker, else from the option or the ini file. Raises MarkerError."""
    marker_actions = {Grade.INVALID: arguments.on_invalid, Grade.DEGRADED: arguments.on_degraded}
    options = {grade: f"testbed_on_{grade.value}" for grade in marker_actions}
    return {
        grade: action or check_action(options[grade], option_or_ini(config, options[grade]))
        for grade, action in marker_actions.items()
    }


def raise_outcome(config: pytest.Config, network: Network, actions: Mapping[Grade, Action]) -> None:
    """Skip, xfail or fail a passed test, if the action for its network's grade requires it."""
    grade, action = network.grade, actions.get(network.grade, "ignore")
    if action == "ignore":
        return
    message = f"the network was {network.summary}"
    if action == "xfail":
        raise pytest.xfail.Exception(message)
    if action == "skip" and not config.getoption("--testbed-strict"):
        raise pytest.skip.Exception(message)
    lines = [f"{message}; the test's own assertions hold", *(f"  {reason}" for reason in network.reasons[1:])]
    keyword = f"on_{grade.value}"
    lines.append(
        f'to change this outcome, use {keyword}="skip", "xfail" or "ignore" in the marker, or '
        f"--testbed-{keyword.replace('_', '-')}"
    )
    if action == "skip":
        lines[-1] = f'{keyword}="skip" is set, but --testbed-strict turns skips into failures'
    raise pytest.fail.Exception("\n".join(lines), pytrace=False)

"""Outcome of a run of host programs, with a verdict.

The verdict is `cluster_check.verdict` on the span (links, relay, machine), with findings on frames lost by NICs in node
processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from testbed.controller.cluster_check import nodes_taken_down, verdict
from testbed.controller.verdict.counter_snapshots import CounterSnapshot
from testbed.controller.verdict.thresholds import TABLE, Table
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.runtime.nodes.node_process import NicReport
from testbed.runtime.nodes.node_run import RunOutcome


@dataclass(frozen=True, slots=True)
class JudgedOutcome(RunOutcome):
    """Outcome with a verdict. results: results of the programs, by rank name. reports: reports of their NICs, by node."""

    verdict: Verdict

    @property
    def invalid(self) -> str:
        """Reason why the run is invalid, as text; empty if it is valid."""
        return "; ".join(str(finding) for finding in self.verdict.findings if finding.grade is Grade.INVALID)


def judge_outcome(outcome: RunOutcome, nodes: Iterable[str], cluster: str, before: CounterSnapshot) -> JudgedOutcome:
    """Add a verdict to an outcome. nodes: all nodes with a process. before: counters at the beginning of the run. Raises
    NotFoundError for a cluster that is gone."""
    span_verdict = verdict(cluster, before)
    down = any(report.down for report in outcome.reports.values())
    cut = nodes_taken_down(cluster, before.clock) if down else ()
    findings = [*nic_findings(outcome.reports, nodes, TABLE, cut), *span_verdict.findings]
    judged = verdict_of(findings, span_verdict.notes, span_verdict.seconds, span_verdict.slow)
    return JudgedOutcome(outcome.results, outcome.reports, judged)


def nic_findings(
    reports: Mapping[str, NicReport], nodes: Iterable[str], table: Table, cut: Collection[str] = ()
) -> list[Finding]:
    """Return findings on frames lost by NICs in node processes, undecided for a process that died without a report. cut:
    nodes with a link that was taken down."""
    findings = []
    for node in nodes:
        report = reports.get(node)
        if report is None:
            reason = f"{node} ended without a report: its losses are unknown"
            findings.append(Finding("NIC lost", node, "", 0, None, "frames", Grade.UNDECIDED, reason))
            continue
        causes = {"its process did not read in time": report.dropped, "the kernel did not take": report.unsent}
        detail = ", ".join(f"{count} that {cause}" for cause, count in causes.items() if count)
        findings.append(_finding(table, "NIC lost", node, report.lost, detail))
        if report.down:
            name, reason = "NIC down", "they could not leave"
            if node in cut:
                name, reason = "NIC taken down", "they could not leave, as requested"
            findings.append(_finding(table, name, node, report.down, reason))
    return findings


def _finding(table: Table, name: str, node: str, count: int, reason: str) -> Finding:
    return Finding(name, node, "", 0, count, table.unit(name), table.grade(name, count), reason)

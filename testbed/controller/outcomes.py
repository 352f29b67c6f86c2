"""What a run of host programs has come to, and how far it can be trusted.

Its verdict is that of its span (`checking.verdict`: links, relay, the machine), and what its node processes lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from testbed.controller.accounts import Account
from testbed.controller.checking import nodes_taken_down, verdict
from testbed.controller.thresholds import Table
from testbed.controller.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.runtime.nodes.node import Report
from testbed.runtime.nodes.run import Outcome


@dataclass(frozen=True, slots=True)
class Judged(Outcome):
    """results: what the programs returned. reports: what their NICs did. By node."""

    verdict: Verdict

    @property
    def invalid(self) -> str:
        """Why the run says nothing of the protocol; empty when it does."""
        return "; ".join(_said(one) for one in self.verdict.findings if one.grade is Grade.INVALID)


def judged(outcome: Outcome, nodes: Iterable[str], cluster: str, before: Account, table: Table) -> Judged:
    """nodes: all that had a process. before: an account of the run's beginning. Raises NotFoundError for a cluster that is
    gone."""
    span = verdict(cluster, before, table=table)
    down = any(report.down for report in outcome.reports.values())
    cut = nodes_taken_down(cluster, before.clock) if down else ()
    findings = [*nic_findings(outcome.reports, nodes, table, cut), *span.findings]
    return Judged(outcome.results, outcome.reports, verdict_of(findings, span.notes, span.seconds, span.slow))


def nic_findings(
    reports: Mapping[str, Report], nodes: Iterable[str], table: Table, cut: Collection[str] = ()
) -> list[Finding]:
    """What NICs lost that run in node processes. One that has died has told nothing. cut: nodes with a link that somebody
    had taken down."""
    found = []
    for node in nodes:
        report = reports.get(node)
        if report is None:
            reason = f"{node} has ended without a report: what it lost is not known"
            found.append(Finding("NIC lost", node, "", 0, None, "frames", Grade.UNDECIDED, reason))
            continue
        causes = {"its process did not read in time": report.dropped, "the kernel did not take": report.unsent}
        detail = ", ".join(f"{count} that {words}" for words, count in causes.items() if count)
        found.append(_finding(table, "NIC lost", node, report.lost, detail))
        if report.down:
            what, reason = "NIC down", "they could not leave"
            if node in cut:
                what, reason = "NIC taken down", "they could not leave, as was asked for"
            found.append(_finding(table, what, node, report.down, reason))
    return found


def _finding(table: Table, what: str, node: str, count: int, reason: str) -> Finding:
    return Finding(what, node, "", 0, count, table.unit(what), table.grade(what, count), reason)


def _said(finding: Finding) -> str:
    """One finding in words."""
    place = " ".join(part for part in (finding.link, finding.direction) if part)
    where = f" on {place}" if place else ""
    measured = "" if finding.measured is None else f" {finding.measured:.6g} {finding.unit}"
    return f"{finding.what}{where}:{measured}" + (f" ({finding.reason})" if finding.reason else "")

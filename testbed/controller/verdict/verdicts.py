"""Findings and verdicts: configured and measured values, and their grades of trust."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from testbed.observe.format.quantities import format_time


class Grade(Enum):
    """Trust in a finding or a run."""

    TRUSTED = "trusted"
    UNDECIDED = "undecided"
    """No decision is possible, for example because the sample is too small; only for findings."""
    DEGRADED = "degraded"
    INVALID = "invalid"
    FAILED = "failed"
    """A check of the protocol's guarantees failed: see `checkers`."""

    @property
    def severity(self) -> int:
        return list(Grade).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """A graded measurement.

    what: name of the measured quantity, or of a failed check. link: for findings on a NIC, its node; in a run on several
    machines, also "machine NAME" or a pair of machines. link and direction are empty for findings on the only machine.
    asked: configured value, or None. measured: None if no measurement was possible. Both are in `unit`. reason: a sentence,
    if the grade needs an explanation. interval: values that are compatible with the sample, at a level of one in a million.
    """

    what: str
    link: str
    direction: str
    asked: float | None
    measured: float | None
    unit: str
    grade: Grade
    reason: str = ""
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        """Format as one line: name, place, value, reason."""
        location = " ".join(part for part in (self.link, self.direction) if part)
        where = f" on {location}" if location else ""
        measured = ""
        if self.measured is not None:
            measured = f" {_format(self.measured, self.unit)}"
        return f"{self.what}{where}:{measured}" + (f" ({self.reason})" if self.reason else "")


def _format(value: float, unit: str) -> str:
    match unit:
        case "ns":
            return format_time(value)
        case "share":
            return f"{value * 100:.4g}%"
        case _:
            return f"{value:.6g} {unit}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a span. grade: the worst grade of the decided findings. notes: warnings that do not change the grade.
    seconds: duration of the span. slow: the slow-machine factor."""

    grade: Grade
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    slow: float = 1.0

    @property
    def undecided(self) -> tuple[Finding, ...]:
        """Findings without a decision, which do not count as trusted."""
        return tuple(finding for finding in self.findings if finding.grade is Grade.UNDECIDED)

    def of(self, link: str, direction: str = "", what: str = "") -> list[Finding]:
        """Return the findings on a link ("": on the machine); direction, what: only of this direction, of this name."""
        return [
            finding
            for finding in self.findings
            if finding.link == link and direction in ("", finding.direction) and what in ("", finding.what)
        ]


def worst(findings: Iterable[Finding]) -> Grade:
    """Return the worst grade of the decided findings; TRUSTED if there are none."""
    grades = [finding.grade for finding in findings if finding.grade is not Grade.UNDECIDED]
    return max(grades, key=lambda grade: grade.severity, default=Grade.TRUSTED)


def verdict_of(
    findings: Iterable[Finding], notes: Iterable[str] = (), seconds: float = 0.0, slow: float = 1.0
) -> Verdict:
    """Return the verdict of these findings."""
    all_findings = tuple(findings)
    return Verdict(worst(all_findings), all_findings, tuple(notes), seconds, slow)

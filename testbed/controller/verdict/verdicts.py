"""Findings and verdicts: requested and measured values, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """Trust in a finding or a run."""

    TRUSTED = "trusted"
    UNDECIDED = "undecided"
    """The sample is too small to decide; of a single finding only."""
    DEGRADED = "degraded"
    INVALID = "invalid"
    FAILED = "failed"
    """A promise of the protocol did not hold: see `checkers`."""

    @property
    def severity(self) -> int:
        return list(Grade).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """A graded measurement.

    what: its name in the table of thresholds. link: of a NIC's finding its node. link and direction are empty for
    findings on the whole machine. asked: the configured value, or None. measured: None where no measurement was
    possible. Both in `unit`. reason: a sentence where the grade needs one. interval: the values that the sample is
    compatible with, at a level of one in a million.
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
        measured = "" if self.measured is None else f" {self.measured:.6g} {self.unit}"
        return f"{self.what}{where}:{measured}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a span. grade: the worst of the decided findings. notes: warnings that change no grade. seconds: the
    span. slow: the slow-machine factor."""

    grade: Grade
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    slow: float = 1.0

    @property
    def undecided(self) -> tuple[Finding, ...]:
        """Findings with too small a sample, which do not count as trusted."""
        return tuple(finding for finding in self.findings if finding.grade is Grade.UNDECIDED)

    def of(self, link: str, direction: str = "", what: str = "") -> list[Finding]:
        """Return the findings of a link (of the machine: ""), of one of its directions, of one name."""
        return [
            finding
            for finding in self.findings
            if finding.link == link and direction in ("", finding.direction) and what in ("", finding.what)
        ]


def worst(findings: Iterable[Finding]) -> Grade:
    """Return the worst grade of the decided findings; trusted without findings."""
    grades = [finding.grade for finding in findings if finding.grade is not Grade.UNDECIDED]
    return max(grades, key=lambda grade: grade.severity, default=Grade.TRUSTED)


def verdict_of(
    findings: Iterable[Finding], notes: Iterable[str] = (), seconds: float = 0.0, slow: float = 1.0
) -> Verdict:
    found = tuple(findings)
    return Verdict(worst(found), found, tuple(notes), seconds, slow)

"""Findings and verdicts: what was asked for, what was measured, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How far a finding, and a run, can be trusted."""

    TRUSTED = "trusted"
    UNDECIDED = "undecided"
    """Too little was seen to say; of a single finding only."""
    DEGRADED = "degraded"
    INVALID = "invalid"
    FAILED = "failed"
    """What the protocol promises did not hold: see `checkers`."""

    @property
    def severity(self) -> int:
        return list(Grade).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    what: its name in the table of thresholds. link: a node where the finding is of its NIC. It and the direction are empty
    for what concerns the whole machine. asked: None where nothing is asked for. measured: None where nothing could be
    measured. Both in `unit`. reason: a sentence where the grade needs one. interval: the values that the sample can be
    reconciled with, at the level of one in a million.
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """grade: the worst of the findings that are decided. notes: warnings that change no grade. seconds: the span. slow:
    the slow-machine factor."""

    grade: Grade
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    slow: float = 1.0

    @property
    def undecided(self) -> tuple[Finding, ...]:
        """What too little was seen of; it is not called trusted."""
        return tuple(finding for finding in self.findings if finding.grade is Grade.UNDECIDED)

    def of(self, link: str, direction: str = "", what: str = "") -> list[Finding]:
        """The findings of a link (of the machine: ""), of one direction of it, of one name."""
        return [
            finding
            for finding in self.findings
            if finding.link == link and direction in ("", finding.direction) and what in ("", finding.what)
        ]


def worst(findings: Iterable[Finding]) -> Grade:
    """The worst grade of what is decided; trusted without findings."""
    grades = [finding.grade for finding in findings if finding.grade is not Grade.UNDECIDED]
    return max(grades, key=lambda grade: grade.severity, default=Grade.TRUSTED)


def verdict_of(
    findings: Iterable[Finding], notes: Iterable[str] = (), seconds: float = 0.0, slow: float = 1.0
) -> Verdict:
    found = tuple(findings)
    return Verdict(worst(found), found, tuple(notes), seconds, slow)

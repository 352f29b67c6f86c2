"""What checkers have found, for people, for a run's folder and for its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from testbed.controller.verdicts import Finding, Grade

SHOWN: Final = 10
"""Violations in words, of each check; all are counted, and the folder has them up to MOST."""
MOST: Final = 1_000


@dataclass(slots=True)
class Check:
    """One promise. checked: how often it was looked at, in `unit`. failed: how often it did not hold. violations: a sentence
    for each, with the messages concerned and where the history tells of them; at most MOST."""

    name: str
    unit: str
    checked: int = 0
    failed: int = 0
    violations: list[str] = field(default_factory=list)

    def violated(self, sentence: str) -> None:
        self.failed += 1
        if len(self.violations) < MOST:
            self.violations.append(sentence)


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """A message of which its sender does not know whether it has arrived. truth: delivered, not delivered or unknown, as
    the other end has it. why: of that."""

    message: str
    told: str
    truth: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """checks: all, by name. figures: of recovery, in seconds, and counts that are no violations."""

    checks: Mapping[str, Check]
    ambiguities: tuple[Ambiguity, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks.values() if check.failed)

    def findings(self) -> list[Finding]:
        """For the verdict: one for each check that failed."""
        return [
            Finding(check.name, "", "", 0, check.failed, check.unit, Grade.FAILED, _first(check))
            for check in self.checks.values()
            if check.failed
        ]

    def to_json(self) -> Mapping[str, object]:
        return {
            "passed": self.passed,
            "checks": [
                {
                    "check": check.name,
                    "unit": check.unit,
                    "checked": check.checked,
                    "failed": check.failed,
                    "violations": check.violations,
                }
                for check in self.checks.values()
            ],
            "ambiguous": [
                {"message": one.message, "told": one.told, "truth": one.truth, "why": one.why}
                for one in self.ambiguities
            ],
            "figures": dict(self.figures),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """What `to_json` gave."""
        checks = [
            Check(one["check"], one["unit"], one["checked"], one["failed"], list(one["violations"]))
            for one in data["checks"]
        ]
        doubts = [Ambiguity(one["message"], one["told"], one["truth"], one["why"]) for one in data["ambiguous"]]
        return cls({check.name: check for check in checks}, tuple(doubts), data["figures"])

    def in_words(self) -> str:
        """Lines: every check, what failed, and what became of messages whose senders do not know it."""
        lines = []
        for check in self.checks.values():
            said = f"{check.failed:,} of {check.checked:,} {check.unit} FAILED" if check.failed else "holds"
            lines.append(f"{check.name}: {said}" + ("" if check.failed else f" for {check.checked:,} {check.unit}"))
            lines += [f"  {sentence}" for sentence in check.violations[:SHOWN]]
            if check.failed > SHOWN:
                lines.append(f"  and {check.failed - SHOWN:,} more")
        for truth in ("delivered", "not delivered", "unknown"):
            some = [one for one in self.ambiguities if one.truth == truth]
            if some:
                lines.append(f"of messages that were returned or never ended, {len(some):,} {truth}: {some[0].message}")
        lines += [f"{name}: {value:.6g}" for name, value in self.figures.items()]
        return "\n".join(lines)


def _first(check: Check) -> str:
    more = f", and {check.failed - 1:,} more" if check.failed > 1 else ""
    return (check.violations[0] if check.violations else "") + more

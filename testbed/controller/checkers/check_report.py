"""Report of the checkers, as text, as JSON and as findings of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from testbed.controller.verdict.verdicts import Finding, Grade

MAX_SHOWN: Final = 10
"""Maximum number of violations of a check that are shown."""
MAX_VIOLATIONS: Final = 1_000
"""Maximum number of violations of a check in the report; all are counted."""


@dataclass(slots=True)
class Check:
    """Result of one check. checked: number of checked items. unit: noun for the items, in the plural. failed: number of
    failed items. violations: a sentence for each failure, with the messages and their locations in the history; at most
    MAX_VIOLATIONS."""

    name: str
    unit: str
    checked: int = 0
    failed: int = 0
    violations: list[str] = field(default_factory=list)

    def add_violation(self, sentence: str) -> None:
        self.failed += 1
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(sentence)


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """A message whose sender does not know whether it arrived. notification: the last one to the sender. outcome:
    "delivered", "not delivered" or "unknown", according to the receiver. reason: reason for `outcome`."""

    message: str
    notification: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all checks of a run. checks: by name. figures: recovery times in seconds, and counts that are not
    violations. notes: remarks for the verdict."""

    checks: Mapping[str, Check]
    ambiguities: tuple[Ambiguity, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def message_count(self) -> int:
        """Number of checked messages: the first check examines all of them."""
        return next((check.checked for check in self.checks.values()), 0)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks.values() if check.failed)

    def findings(self) -> list[Finding]:
        """Return a finding for each failed check, for the verdict."""
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
                {
                    "message": ambiguity.message,
                    "told": ambiguity.notification,
                    "truth": ambiguity.outcome,
                    "why": ambiguity.reason,
                }
                for ambiguity in self.ambiguities
            ],
            "figures": dict(self.figures),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Read the result of `to_json`."""
        checks = [
            Check(check["check"], check["unit"], check["checked"], check["failed"], list(check["violations"]))
            for check in data["checks"]
        ]
        ambiguities = [
            Ambiguity(entry["message"], entry["told"], entry["truth"], entry["why"]) for entry in data["ambiguous"]
        ]
        return cls(
            {check.name: check for check in checks}, tuple(ambiguities), data["figures"], tuple(data.get("notes", ()))
        )

    def to_text(self) -> str:
        """Format as lines: every check with its violations, ambiguous messages, notes, and figures."""
        lines = []
        for check in self.checks.values():
            items = f"{check.checked:,} {check.unit}"
            result = f"{check.failed:,} of {items} FAILED" if check.failed else f"holds for {items}"
            lines.append(f"{check.name}: {result}")
            lines += [f"  {sentence}" for sentence in check.violations[:MAX_SHOWN]]
            if check.failed > MAX_SHOWN:
                lines.append(f"  and {check.failed - MAX_SHOWN:,} more")
        for outcome in ("delivered", "not delivered", "unknown"):
            ambiguities = [ambiguity for ambiguity in self.ambiguities if ambiguity.outcome == outcome]
            if ambiguities:
                lines.append(f"ambiguous messages, {outcome}: {len(ambiguities):,}, such as {ambiguities[0].message}")
        lines += self.notes
        lines += [f"{name}: {value:.6g}" for name, value in self.figures.items()]
        return "\n".join(lines)


def _first(check: Check) -> str:
    more = f", and {check.failed - 1:,} more" if check.failed > 1 else ""
    return (check.violations[0] if check.violations else "") + more

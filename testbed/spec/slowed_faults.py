"""Faults of a dilated run: what they do to links takes k times as long, as all that these do there (`slowing`). When they
come, and for how long, stays in the model's time."""

from __future__ import annotations

from testbed.errors import UnsupportedError
from testbed.spec.faults import Fault, Impair, Incast, Rule, Traffic
from testbed.spec.slowing import slowed_rate, slowed_rule


def slowed_fault(fault: Fault, factor: int) -> Fault:
    """factor: 1 or more. UnsupportedError for delays or rates that are in files, or a rate that would be below one bit/s."""
    if isinstance(fault, Impair):
        if fault.jitter_file is not None or fault.rate_trace is not None:
            raise UnsupportedError("a jitter or a rate that is in a file cannot be slowed")
        said = fault.said()
        found: dict[str, object] = {key: said[key] * factor for key in ("delay", "jitter") if key in said}
        if said.get("rate"):
            found["rate"] = slowed_rate(fault.kind, said["rate"], factor)
        if "rules" in said:
            found["rules"] = _rules(said["rules"], factor)
        return fault.model_copy(update=found)
    if isinstance(fault, Rule):
        return fault.model_copy(update={"rules": _rules(fault.rules, factor)})
    if isinstance(fault, Traffic | Incast):
        return fault.model_copy(update={"rate": slowed_rate(fault.kind, fault.rate, factor)})
    return fault


def _rules(rules: tuple[str, ...], factor: int) -> tuple[str, ...]:
    return tuple(slowed_rule(rule, factor) for rule in rules)

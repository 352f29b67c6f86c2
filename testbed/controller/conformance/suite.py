"""The conformance suite: a list of named checks of a protocol, each with its requirement.

    from testbed.controller.conformance.suite import State, check

    result = check("postcard", "wildcards")
    assert result.state is not State.FAILED, result.reason

A protocol is given by the name that its package registers. An error of its firmware or host library fails the check in which
it occurs: an exception, a frame above the MTU, a deadline that stays in the past.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from testbed.controller.conformance import case_checks, message_checks, run_checks
from testbed.controller.conformance.candidate import Candidate, NotApplicableError, candidate
from testbed.controller.conformance.fate_schedules import DEPTH
from testbed.controller.conformance.trials import Violation
from testbed.errors import NotFoundError, UnsupportedError, did_you_mean


class State(Enum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Scope:
    """Extent of the checks by many cases. depth: number of frames whose fates are chosen. cases: number of cases of the
    swarm. seed: seed of its first case."""

    depth: int = DEPTH
    cases: int = 200
    seed: int = 0


Run = Callable[[Candidate, Scope], str | None]
"""Run a check; return a summary, or None. Raises Violation and NotApplicableError."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check. demands: its requirement, as a sentence. needs_namespaces: whether it needs more than the simulation.
    run_case: runs one case, by its name; None if the check has no cases."""

    name: str
    demands: str
    run: Run
    needs_namespaces: bool = False
    run_case: Callable[[Candidate, str], str] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a check. reason: reason of a failure, or why the check is not applicable; for a passed check a summary, or
    empty. seconds: duration."""

    check: Check
    state: State
    reason: str
    seconds: float


def _without_scope(run: Callable[[Candidate], str | None]) -> Run:
    return lambda candidate, _scope: run(candidate)


CHECKS: Final = (
    Check(
        "self-sends",
        "A node's messages to itself arrive complete and in order, and a synchronous self-send waits for the receive.",
        _without_scope(message_checks.self_sends),
    ),
    Check(
        "wildcards",
        "Receives of any source or tag get matching messages, in the order of each sender, and none of other contexts.",
        _without_scope(message_checks.wildcards),
    ),
    Check(
        "cancel",
        "A cancelled receive gets no message, and the next receive gets the next message.",
        _without_scope(message_checks.cancel),
    ),
    Check(
        "truncation",
        "A message longer than its buffer fills it, writes no other memory, and fails only the receive.",
        _without_scope(message_checks.truncation),
    ),
    Check(
        "burst",
        "More messages at once than a NIC has descriptors arrive in order, and complete sends use no memory.",
        _without_scope(message_checks.burst),
    ),
    Check(
        "mtu",
        "No frame is longer than the MTU, for several MTUs, and messages of all sizes near the MTU arrive.",
        _without_scope(message_checks.mtus),
    ),
    Check(
        "deadlines",
        "While a link is down, each deadline advances; when it is up again, all messages arrive, and no timer is left.",
        _without_scope(message_checks.deadlines),
    ),
    Check(
        "restarts",
        "Restarted NICs communicate again, transfers with them end, and no message arrives twice or in another life.",
        _without_scope(run_checks.restarts),
    ),
    Check(
        "fates",
        "If the first frames pass, are lost, duplicated or late, in all combinations, messages arrive once, in order.",
        lambda candidate, scope: case_checks.fates(candidate, scope.depth),
        run_case=case_checks.run_schedule,
    ),
    Check(
        "swarm",
        "In random clusters with random faults, messages arrive once, in order and complete, when the network has healed.",
        lambda candidate, scope: case_checks.swarm(candidate, scope.seed, scope.cases),
        run_case=case_checks.run_case,
    ),
    Check(
        "killed-host",
        "A killed host process on a shared NIC affects no other process, and another one can take its place.",
        _without_scope(run_checks.killed_host),
        needs_namespaces=True,
    ),
    Check(
        "parity",
        "On real frames, frames have the simulation's fates, flow by flow, and programs receive the same messages.",
        _without_scope(run_checks.parity),
        needs_namespaces=True,
    ),
)
BY_NAME: Final[Mapping[str, Check]] = {check.name: check for check in CHECKS}


def find_check(name: str) -> Check:
    """Return the check of a name. Raises NotFoundError."""
    if name not in BY_NAME:
        raise NotFoundError(f"unknown check {name!r}{did_you_mean(name, BY_NAME)}; use one of {', '.join(BY_NAME)}")
    return BY_NAME[name]


def check(protocol: str, name: str, scope: Scope = Scope(), case: str | None = None) -> Result:
    """Run one check of a registered protocol.

    case: run only this case of the check. Raises NotFoundError for an unknown protocol, check or case, UnsupportedError for
    a case of a check without cases, and for a kernel protocol, TestbedError if the NICs of the protocol cannot be built.
    """
    chosen, checked = find_check(name), candidate(protocol)
    started = time.monotonic()
    try:
        if case is None:
            summary = chosen.run(checked, scope)
        elif chosen.run_case is None:
            raise UnsupportedError(f"check {name} has no cases: leave --case out")
        else:
            summary = chosen.run_case(checked, case)
        state, reason = State.PASSED, summary or ""
    except Violation as violation:
        state, reason = State.FAILED, str(violation)
    except NotApplicableError as error:
        state, reason = State.NOT_APPLICABLE, str(error)
    return Result(chosen, state, reason, time.monotonic() - started)

"""The conformance suite: a list of named checks of a protocol, each with a sentence of what it demands.

    from testbed.controller.conformance.suite import check

    result = check("postcard", "wildcards")
    assert result.state is not State.FAILED, result.reason

A protocol is anybody's, by the name that its package registers. An error of its firmware or host library fails the check
that has met it, as in every run: an exception, a frame above the MTU, a deadline that stays in the past.
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
    """How much the checks by many cases do. depth: frames whose fates are chosen. cases: of the swarm. seed: of its first
    case."""

    depth: int = DEPTH
    cases: int = 200
    seed: int = 0


Run = Callable[[Candidate, Scope], str | None]
"""Make a check; return a note of what was done. Raises Violation and NotApplicableError."""


@dataclass(frozen=True, slots=True)
class Check:
    """demands: a sentence. needs_namespaces: it is not made in the simulation alone. again: runs one case, by its name."""

    name: str
    demands: str
    run: Run
    needs_namespaces: bool = False
    again: Callable[[Candidate, str], str] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a check. reason: of a failure, or why it is not applicable; of a pass a note, or empty. seconds: it took."""

    check: Check
    state: State
    reason: str
    seconds: float


def _plain(run: Callable[[Candidate], str | None]) -> Run:
    return lambda candidate, _scope: run(candidate)


CHECKS: Final = (
    Check(
        "self-sends",
        "A node's messages to itself arrive whole and in order, and its synchronous send waits for the receive.",
        _plain(message_checks.self_sends),
    ),
    Check(
        "wildcards",
        "Receives of any source or tag get what fits, in the order of each sender, and nothing of other contexts.",
        _plain(message_checks.wildcards),
    ),
    Check(
        "cancel",
        "A receive that is cancelled gets no message, and leaves the next one to the next receive.",
        _plain(message_checks.cancel),
    ),
    Check(
        "truncation",
        "A message longer than its buffer fills it, touches nothing else, and fails the receive alone.",
        _plain(message_checks.truncation),
    ),
    Check(
        "mtu",
        "No frame is longer than the MTU, whatever that is, and messages of every size about it arrive.",
        _plain(message_checks.mtus),
    ),
    Check(
        "deadlines",
        "While nothing answers, each deadline moves on; when the link is back all arrives, and no timer is left.",
        _plain(message_checks.deadlines),
    ),
    Check(
        "restarts",
        "NICs that restart or crash are heard again, transfers with them end, and nothing arrives twice or in another life.",
        _plain(run_checks.restarts),
    ),
    Check(
        "fates",
        "Whether each of the first frames passes, is lost, comes twice or late: every message arrives once, in order.",
        lambda candidate, scope: case_checks.fates(candidate, scope.depth),
        again=case_checks.one_schedule,
    ),
    Check(
        "swarm",
        "In random clusters with random faults, messages arrive once, in order and whole, once the network has healed.",
        lambda candidate, scope: case_checks.swarm(candidate, scope.seed, scope.cases),
        again=case_checks.one_case,
    ),
    Check(
        "killed-host",
        "A process that is killed on a shared NIC harms nobody, and the next one takes its place.",
        _plain(run_checks.killed_host),
        needs_namespaces=True,
    ),
    Check(
        "parity",
        "On real frames, frames have the simulation's fates, flow by flow, and programs receive the same messages.",
        _plain(run_checks.parity),
        needs_namespaces=True,
    ),
)
BY_NAME: Final[Mapping[str, Check]] = {one.name: one for one in CHECKS}


def named(name: str) -> Check:
    """Return the check of that name. Raises NotFoundError."""
    if name not in BY_NAME:
        raise NotFoundError(f"no check is called {name!r}{did_you_mean(name, BY_NAME)}; there are {', '.join(BY_NAME)}")
    return BY_NAME[name]


def check(protocol: str, name: str, scope: Scope = Scope(), case: str | None = None) -> Result:
    """Make one check of a registered protocol.

    case: makes only this one of a check that has cases. Raises NotFoundError for an unknown protocol, check or case,
    UnsupportedError for a case of a check without, and for one of the kernel's protocols.
    """
    chosen, own = named(name), candidate(protocol)
    begun = time.monotonic()
    try:
        if case is None:
            note = chosen.run(own, scope)
        elif chosen.again is None:
            raise UnsupportedError(f"check {name} has no cases: leave --case out")
        else:
            note = chosen.again(own, case)
        state, reason = State.PASSED, note or ""
    except Violation as violation:
        state, reason = State.FAILED, str(violation)
    except NotApplicableError as error:
        state, reason = State.NOT_APPLICABLE, str(error)
    return Result(chosen, state, reason, time.monotonic() - begun)

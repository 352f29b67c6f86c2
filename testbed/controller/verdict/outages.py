"""Outages: spans in which one of the testbed's own processes was dead. A run with an outage is invalid however it ends.

The frames that a relay or an agent held when it died, and those that arrived before its restart, are lost because of the
testbed, not because of the protocol or a scenario. Checkers must not report their loss as a violation.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from testbed.cluster.records.state import State, Store
from testbed.cluster.records.status import missing, needs_supervisor
from testbed.controller.checkers.disturbances import OUTAGE, Disturbance
from testbed.controller.runs.run_recorder import RunRecorder, verdict_to_json
from testbed.controller.verdict.spans import COUNTERS_CONTINUE
from testbed.controller.verdict.thresholds import TABLE
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import FirmwareError, TestbedError
from testbed.runtime import event_log
from testbed.runtime.supervision import are_all_running, running_supervisor

RELAY, SUPERVISOR, AGENT, PARENT, HOLDER = "relay", "supervisor", "NIC agent", "node parent", "namespace holder"
_FINDINGS: Final = {
    RELAY: "relay gap", SUPERVISOR: "supervisor gap", AGENT: "NIC agent gap", PARENT: "node parent gap",
    HOLDER: "cluster ended",
}  # fmt: skip
_RESTART_TIMEOUT: Final = 5.0  # s for a restart of the supervisor, which includes the start of an interpreter
_POLL_INTERVAL: Final = 0.01  # s


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage. process: kind of process. begin: when the death was noticed, monotonic nanoseconds. gap: nanoseconds until
    the restarted process continued; 0 if there is none yet. node: node of an agent. reason: a sentence."""

    process: str
    begin: int
    gap: int
    node: str
    reason: str

    def finding(self) -> Finding:
        name = _FINDINGS[self.process]
        return Finding(name, self.node, "", 0, self.gap or None, TABLE.unit(name), Grade.INVALID, self.reason)

    def disturbance(self) -> Disturbance:
        nodes = frozenset({self.node}) if self.node else frozenset[str]()
        return Disturbance(OUTAGE, self.begin, nodes=nodes, what=self.reason)


def find_outages(events: Iterable[Mapping[str, Any]], since: int = 0) -> list[Outage]:
    """Find outages in the events of a cluster, in the order of time. since: monotonic nanoseconds."""
    ended: list[Outage] = []
    deaths: dict[tuple[str, str], Mapping[str, Any]] = {}  # without a restart yet
    for event in events:
        process, _, action = event["event"].rpartition(" ")
        if process not in _FINDINGS or event["clock"] < since:
            continue
        key = process, str(event.get("node", ""))
        if action == "died":
            deaths[key] = event
        elif action == "restarted" and (death := deaths.pop(key, None)) is not None:
            ended.append(_build_outage(*key, death, event))
    return sorted(
        [*ended, *(_build_outage(*key, death, None) for key, death in deaths.items())], key=lambda outage: outage.begin
    )


def _build_outage(process: str, node: str, death: Mapping[str, Any], restart: Mapping[str, Any] | None) -> Outage:
    subject = f"the {process}" + (f" of {node}" if node else "")
    pid = f" (process {death['pid']})" if death.get("pid") else ""
    code = death.get("code")
    cause = "" if code is None else f" by signal {-code}" if code < 0 else f" with code {code}"
    reason, gap = f"{subject}{pid} died{cause}", 0
    if restart is not None:
        gap = max(1, restart["gap"][1] - restart["gap"][0])
        reason += f" and was restarted {gap / 1e6:.3g} ms later"
    if restart is not None and "lost" in restart:
        reason += f"; {restart['lost']} frames were lost meanwhile, and {restart['also_lost']}; {COUNTERS_CONTINUE}"
    elif process == SUPERVISOR:
        reason += "; relay and agents continued without it"
    elif process == HOLDER:
        reason += ": the cluster has ended"
    return Outage(process, death["clock"], gap, node, reason)


def await_supervisor(state: State, directory: Path, since: int) -> None:
    """Wait until a dead supervisor was restarted and has recorded its outage, so that a run that ends meanwhile reports the
    gap. Return at once if no relay or agent runs that would restart it, and at the latest after _RESTART_TIMEOUT."""
    deadline = time.monotonic() + _RESTART_TIMEOUT
    while needs_supervisor(state) and (are_all_running(directory, "relay") or are_all_running(directory, "nic")):
        recorded = find_outages(event_log.read(directory), since)
        is_back = running_supervisor(directory) is not None and all(
            outage.gap for outage in recorded if outage.process == SUPERVISOR
        )
        if is_back or time.monotonic() > deadline:
            return
        time.sleep(_POLL_INTERVAL)


def supervisor_findings(
    state: State, directory: Path, events: Iterable[Mapping[str, Any]], since: int
) -> list[Finding]:
    """Return findings on outages of the supervisor of a cluster that needs one, or needed one in the span; none for other
    clusters."""
    findings = [outage.finding() for outage in find_outages(events, since) if outage.process == SUPERVISOR]
    if not findings and needs_supervisor(state):
        is_missing = running_supervisor(directory) is None
        reason = "no supervisor of relay and agents runs" if is_missing else ""
        grade = Grade.INVALID if is_missing else Grade.TRUSTED
        return [Finding("supervisor gap", "", "", 0, None if is_missing else 0, "ns", grade, reason)]
    return findings


class InvalidRunError(TestbedError):
    """A run ended with an error, and an outage may be the only reason. The error is the `__cause__`. verdict: on the run."""

    exit_code = 9

    def __init__(self, verdict: Verdict, error: BaseException) -> None:
        self.verdict = verdict
        reasons = dict.fromkeys(finding.reason for finding in verdict.findings if finding.grade is Grade.INVALID)
        message = f"the run is invalid: {'; '.join(reasons)}"
        super().__init__(message if str(error) in reasons else f"{message}\nit ended with: {error}")


def is_consequence(outage: Outage, error: Exception) -> bool:
    """Whether an error has caused the outage, which then is no reason of the error: failed firmware ends its NIC agent."""
    return outage.process == AGENT and isinstance(error, FirmwareError)


class OutageJudge(ABC):
    """Judges whether an outage may be the reason of an error that ended a run. Implements
    `checkers.runs.DisturbanceSource`."""

    @abstractmethod
    def disturbances(self) -> Sequence[Disturbance]:
        """Return the outages as disturbances."""

    @abstractmethod
    def causes(self, error: Exception) -> Iterable[Finding]:
        """Return the findings on outages that may be the reason of an error."""

    @contextmanager
    def judge_errors(self, recorder: RunRecorder, more: Callable[[], Iterable[Finding]] = list) -> Iterator[None]:
        """Raise InvalidRunError for an exception of the block if an outage may be its reason, and add the verdict to
        the recorded result. more: returns findings of checkers, which are added to the verdict."""
        try:
            yield
        except Exception as error:
            findings = list(self.causes(error))
            if not findings:
                raise
            verdict = verdict_of([*findings, *more()])
            recorder.add_result(verdict=verdict_to_json(verdict))
            raise InvalidRunError(verdict, error) from error


class ProcessOutages(OutageJudge):
    """Outages of the testbed's own processes during a run on a cluster. Implements `checkers.runs.DisturbanceSource`."""

    def __init__(self, cluster: str, since: int, *, dilated: bool = False) -> None:
        """since: monotonic nanoseconds. dilated: histories are on a model's clock, to which outages cannot be converted, so
        they affect the whole run."""
        self._directory = Store().directory(cluster)
        self._cluster = cluster
        self._since = since
        self._dilated = dilated

    def outages(self) -> list[Outage]:
        return find_outages(event_log.read(self._directory), self._since)

    def findings(self) -> list[Finding]:
        """Return a finding for each outage, also for a process that is missing now and has no event."""
        state = Store().read(self._cluster)
        if state is not None and not state.end_reason:
            await_supervisor(state, self._directory, self._since)
        recorded = self.outages()
        if state is not None and not recorded:
            reasons = [state.end_reason] if state.end_reason else missing(state, self._directory)
            if state.end_reason and state.holder is not None:  # no supervisor was there to record it
                event_log.record_if_possible(self._directory, f"{HOLDER} died", pid=state.holder.pid)
            name = "cluster ended" if state.end_reason else "supervisor gap"
            return [Finding(name, "", "", 0, None, TABLE.unit(name), Grade.INVALID, reason) for reason in reasons[:1]]
        return [outage.finding() for outage in recorded]

    def disturbances(self) -> Sequence[Disturbance]:
        disturbances = [outage.disturbance() for outage in self.outages()]
        if self._dilated:
            return [replace(disturbance, begin=0) for disturbance in disturbances]
        return disturbances

    def causes(self, error: Exception) -> Iterable[Finding]:
        findings = self.findings()
        if isinstance(error, FirmwareError):  # such an error also ends the agent, which is no outage
            return [finding for finding in findings if finding.what != _FINDINGS[AGENT]]
        return findings

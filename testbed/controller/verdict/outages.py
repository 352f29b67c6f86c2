"""Outages: spans in which one of the testbed's own processes was dead. A run in such a span is invalid however it ends;
see `Watched`.

Frames that a relay or an agent held when it died, and those that came before its restart, are lost because of the
testbed, not of the protocol or a scenario: no checker may report them as violations.
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
from testbed.controller.runs.run_recorder import KeptFolder, verdict_to_json
from testbed.controller.verdict.spans import COUNTS
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
_RESTART_TIMEOUT: Final = 5.0  # s for a dead supervisor to be restarted: the start of an interpreter
_POLL_INTERVAL: Final = 0.01  # s


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage. what: the kind of process. begin: when its death was noticed, monotonic nanoseconds. gap: nanoseconds
    until its successor went on; 0 where there is none yet. node: of an agent. reason: a sentence."""

    what: str
    begin: int
    gap: int
    node: str
    reason: str

    def finding(self) -> Finding:
        name = _FINDINGS[self.what]
        return Finding(name, self.node, "", 0, self.gap or None, TABLE.unit(name), Grade.INVALID, self.reason)

    def disturbance(self) -> Disturbance:
        nodes = frozenset({self.node}) if self.node else frozenset[str]()
        return Disturbance(OUTAGE, self.begin, nodes=nodes, what=self.reason)


def outages(events: Iterable[Mapping[str, Any]], since: int = 0) -> list[Outage]:
    """Find outages in the events of a cluster. since: monotonic nanoseconds."""
    known: list[Outage] = []
    waiting: dict[tuple[str, str], Mapping[str, Any]] = {}
    for event in events:
        what, _, happened = event["event"].rpartition(" ")
        if what not in _FINDINGS or event["clock"] < since:
            continue
        key = what, str(event.get("node", ""))
        if happened == "died":
            waiting[key] = event
        elif happened == "restarted" and (died := waiting.pop(key, None)) is not None:
            known.append(_outage(*key, died, event))
    return sorted(
        [*known, *(_outage(*key, died, None) for key, died in waiting.items())], key=lambda outage: outage.begin
    )


def _outage(what: str, node: str, died: Mapping[str, Any], restart: Mapping[str, Any] | None) -> Outage:
    process = f"the {what}" + (f" of {node}" if node else "")
    pid = f" (process {died['pid']})" if died.get("pid") else ""
    code = died.get("code")
    how = "" if code is None else f" by signal {-code}" if code < 0 else f" with code {code}"
    reason, gap = f"{process}{pid} died{how}", 0
    if restart is not None:
        gap = max(1, restart["gap"][1] - restart["gap"][0])
        reason += f" and was started again {gap / 1e6:.3g} ms later"
    if "lost" in (restart or {}) and restart is not None:
        reason += f"; {restart['lost']} frames were lost meanwhile, beside {restart['also_lost']}; {COUNTS}"
    elif what == SUPERVISOR:
        reason += "; relay and agents went on without it"
    elif what == HOLDER:
        reason += ": the cluster has ended"
    return Outage(what, died["clock"], gap, node, reason)


def await_supervisor(state: State, directory: Path, since: int) -> None:
    """Wait until a dead supervisor is back and has reported its outage, so that a run that ends meanwhile can say how
    long it was missing. Returns at once where no relay and no agent runs that would restart one, and after _TIMEOUT at
    the latest."""
    deadline = time.monotonic() + _RESTART_TIMEOUT
    while needs_supervisor(state) and (are_all_running(directory, "relay") or are_all_running(directory, "nic")):
        known = outages(event_log.read(directory), since)
        back = running_supervisor(directory) is not None and all(
            outage.gap for outage in known if outage.what == SUPERVISOR
        )
        if back or time.monotonic() > deadline:
            return
        time.sleep(_POLL_INTERVAL)


def supervisor_findings(
    state: State, directory: Path, events: Iterable[Mapping[str, Any]], since: int
) -> list[Finding]:
    """Return findings on supervisor outages of a cluster that needs a supervisor, or needed one; none for other
    clusters."""
    findings = [outage.finding() for outage in outages(events, since) if outage.what == SUPERVISOR]
    if not findings and needs_supervisor(state):
        gone = running_supervisor(directory) is None
        reason = "no supervisor runs that should look after relay and agents" if gone else ""
        grade = Grade.INVALID if gone else Grade.TRUSTED
        return [Finding("supervisor gap", "", "", 0, None if gone else 0, "ns", grade, reason)]
    return findings


class InvalidRunError(TestbedError):
    """A run ended with an error while one of the testbed's own processes was dead, which may be the only reason. The
    error is its `__cause__`. verdict: of the run."""

    exit_code = 9

    def __init__(self, verdict: Verdict, error: BaseException) -> None:
        self.verdict = verdict
        reasons = dict.fromkeys(finding.reason for finding in verdict.findings if finding.grade is Grade.INVALID)
        message = f"the run is invalid: {'; '.join(reasons)}"
        super().__init__(message if str(error) in reasons else f"{message}\nit ended with: {error}")


class Judge(ABC):
    """Judge of an error that ended a run: whether an outage may be its reason. Implements `checkers.runs.Disturbing`."""

    @abstractmethod
    def disturbances(self) -> Sequence[Disturbance]:
        """Return the outages as disturbances."""

    @abstractmethod
    def causes(self, error: Exception) -> Iterable[Finding]:
        """Return the findings on outages that may be the reason of an error."""

    @contextmanager
    def judging(self, folder: KeptFolder, more: Callable[[], Iterable[Finding]] = list) -> Iterator[None]:
        """Raise InvalidRunError for an exception of the block if an outage may be its reason, and write the verdict to
        the folder's result. more: findings of checkers, which hold in any case."""
        try:
            yield
        except Exception as error:
            findings = list(self.causes(error))
            if not findings:
                raise
            verdict = verdict_of([*findings, *more()])
            folder.say(verdict=verdict_to_json(verdict))
            raise InvalidRunError(verdict, error) from error


class Watched(Judge):
    """Outages of a cluster's own processes during a run there. Implements `checkers.runs.Disturbing`."""

    def __init__(self, cluster: str, since: int, *, dilated: bool = False) -> None:
        """since: monotonic nanoseconds. dilated: the history's clock is a different one."""
        self._directory = Store().directory(cluster)
        self._cluster = cluster
        self._since = since
        self._dilated = dilated

    def outages(self) -> list[Outage]:
        return outages(list(event_log.read(self._directory)), self._since)

    def findings(self) -> list[Finding]:
        """Return a finding for each outage, including a process that is missing now without an event."""
        state = Store().read(self._cluster)
        if state is not None and not state.end_reason:
            await_supervisor(state, self._directory, self._since)
        known = self.outages()
        if state is not None and not known:
            now = [state.end_reason] if state.end_reason else missing(state, self._directory)
            if state.end_reason and state.holder is not None:  # no supervisor was there to record it
                event_log.record(self._directory, f"{HOLDER} died", pid=state.holder.pid)
            name = "cluster ended" if state.end_reason else "supervisor gap"
            return [Finding(name, "", "", 0, None, TABLE.unit(name), Grade.INVALID, reason) for reason in now[:1]]
        return [outage.finding() for outage in known]

    def disturbances(self) -> Sequence[Disturbance]:
        disturbances = [outage.disturbance() for outage in self.outages()]
        if self._dilated:
            return [replace(disturbance, begin=0) for disturbance in disturbances]
        return disturbances

    def causes(self, error: Exception) -> Iterable[Finding]:
        found = self.findings()
        if isinstance(error, FirmwareError):  # it ends its agent, too, which is no outage
            return [finding for finding in found if finding.what != _FINDINGS[AGENT]]
        return found

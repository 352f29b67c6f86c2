"""Outages of machines during a run on several machines: a machine is lost, or does not answer another one for a while.

Such a run is invalid however it ends. The network between machines may lose frames meanwhile. Checkers take the span as a
cut: transfers may fail or wait, but messages may not be lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.cluster.services.machine_watch import REACHABLE, SILENT, UNREACHABLE
from testbed.controller.checkers.disturbances import CUT, FOREVER, Disturbance
from testbed.controller.verdict.outages import Outage, OutageJudge, find_outages, is_consequence
from testbed.controller.verdict.verdicts import Finding, Grade
from testbed.errors import TestbedError

LOST: Final = "machine lost"

Events = Sequence[Mapping[str, Any]]


class MachineLostError(TestbedError):
    """Machines were lost during a run, with the files of their programs. lost: a sentence by machine."""

    def __init__(self, lost: Mapping[str, str]) -> None:
        self.lost = dict(lost)
        super().__init__("; ".join(self.lost.values()))

    def findings(self) -> list[Finding]:
        return [
            Finding(LOST, f"machine {machine}", "", 0, None, "ns", Grade.INVALID, sentence)
            for machine, sentence in self.lost.items()
        ]


@dataclass(frozen=True, slots=True)
class Silence:
    """Span in which a machine did not answer the echo requests of another machine, `observer`. address: to which the
    requests were sent. begin: time of the last reply, nanoseconds of the run's clock. end: time of the next reply, or
    `FOREVER`."""

    machine: str
    address: str
    observer: str
    begin: int
    end: int

    def finding(self, since: int) -> Finding:
        """Return the silence as a finding. since: start of the repetition, nanoseconds of the run's clock."""
        begin = max(0.0, (self.begin - since) / 1e9)
        duration = None if self.end == FOREVER else self.end - self.begin
        span = f"from {begin:.2f} s" + (f" to {(self.end - since) / 1e9:.2f} s" if duration is not None else "")
        machine, observer = f"machine {self.machine} ({self.address})", f"machine {self.observer}"
        reason = f"{machine} did not answer {observer} {span} after the repetition began"
        return Finding(UNREACHABLE, f"machine {self.machine}", "", 0, duration, "ns", Grade.INVALID, reason)

    def disturbance(self) -> Disturbance:
        description = f"machine {self.machine} did not answer {self.observer}"
        return Disturbance(CUT, self.begin, self.end, what=description)


def find_silences(events: Events, observer: str) -> list[Silence]:
    """Find silences of other machines in the events of a machine. observer: its name."""
    ended: list[Silence] = []
    ongoing: dict[str, Silence] = {}
    for event in events:
        if event["event"] == UNREACHABLE:
            begin = event["clock"] - event["silent"]
            ongoing[event["machine"]] = Silence(event["machine"], event["address"], observer, begin, FOREVER)
        elif event["event"] in (REACHABLE, SILENT):
            gap_begin, gap_end = event["gap"]
            ongoing.pop(event["machine"], None)
            begin = event["clock"] - (gap_end - gap_begin)
            ended.append(Silence(event["machine"], event["address"], observer, begin, event["clock"]))
    return [*ended, *ongoing.values()]


class MachineOutages(OutageJudge):
    """Outages of the machines of a repetition, and of the testbed's own processes on them. Implements
    `checkers.runs.DisturbanceSource`."""

    def __init__(self, since: int | None = None) -> None:
        """since: start of the repetition, nanoseconds of the run's clock; None: now."""
        self.since = time.monotonic_ns() if since is None else since
        self._silences: list[Silence] = []
        self._outages: list[tuple[str, Outage]] = []  # by machine

    def add_events(self, machine: str, events: Events) -> None:
        """Evaluate the events of a machine during the repetition. Their times are on the run's clock."""
        self._silences += find_silences(events, machine)
        self._outages += [(machine, outage) for outage in find_outages(events)]

    def silence_findings(self) -> list[Finding]:
        return [silence.finding(self.since) for silence in self._silences]

    def causes(self, error: Exception) -> Iterable[Finding]:
        losses = error.findings() if isinstance(error, MachineLostError) else []
        process_findings = [
            replace(outage.finding(), link=outage.node or f"machine {machine}")
            for machine, outage in self._outages
            if not is_consequence(outage, error)
        ]
        return [*losses, *self.silence_findings(), *process_findings]

    def disturbances(self) -> list[Disturbance]:
        return [
            *(silence.disturbance() for silence in self._silences),
            *(outage.disturbance() for _, outage in self._outages),
        ]

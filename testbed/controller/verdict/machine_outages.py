"""Outages of machines during a run on several: a machine was lost, or did not answer the others for a while.

A run in such a span is invalid however it ends. Frames that the network between machines lost meanwhile are lost because of
it: to a protocol, the span is a cut, which allows its transfers to fail and to wait, but not to be lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.cluster.services.machine_watch import REACHABLE, SILENT, UNREACHABLE
from testbed.controller.checkers.disturbances import CUT, FOREVER, Disturbance
from testbed.controller.verdict.outages import Judge, Outage, outages
from testbed.controller.verdict.verdicts import Finding, Grade
from testbed.errors import TestbedError

LOST: Final = "machine lost"

Events = Sequence[Mapping[str, Any]]


class MachineLostError(TestbedError):
    """Machines were lost during a run, and what their programs had written with them. lost: sentences by machine."""

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
    """Span in which a machine did not answer the echo requests of another one. begin: when its last reply came, end: when
    its next one came, or `FOREVER`; nanoseconds of the run's clock."""

    machine: str
    address: str
    asking: str
    begin: int
    end: int

    def finding(self, since: int) -> Finding:
        """Return the finding, whose span is in seconds after a time of the run's clock."""
        begin = max(0.0, (self.begin - since) / 1e9)
        lasted = None if self.end == FOREVER else self.end - self.begin
        span = f"from {begin:.2f} s" + (f" to {(self.end - since) / 1e9:.2f} s" if lasted is not None else "")
        who, whom = f"machine {self.machine} ({self.address})", f"machine {self.asking}"
        reason = f"{who} did not answer {whom} {span} after the repetition began"
        return Finding(UNREACHABLE, f"machine {self.machine}", "", 0, lasted, "ns", Grade.INVALID, reason)

    def disturbance(self) -> Disturbance:
        what = f"machine {self.machine} did not answer {self.asking}"
        return Disturbance(CUT, self.begin, self.end, what=what)


def silences(events: Events, asking: str) -> list[Silence]:
    """Find the silences of other machines in the events of a machine. asking: its name."""
    found: list[Silence] = []
    lost: dict[str, Silence] = {}
    for event in events:
        if event["event"] == UNREACHABLE:
            begin = event["clock"] - event["silent"]
            lost[event["machine"]] = Silence(event["machine"], event["address"], asking, begin, FOREVER)
        elif event["event"] in (REACHABLE, SILENT):
            begun, ended = event["gap"]
            lost.pop(event["machine"], None)
            begin = event["clock"] - (ended - begun)
            found.append(Silence(event["machine"], event["address"], asking, begin, event["clock"]))
    return [*found, *lost.values()]


class WatchedMachines(Judge):
    """Outages of the machines of a repetition, and of the testbed's own processes on them. Implements
    `checkers.runs.Disturbing`."""

    def __init__(self, since: int | None = None) -> None:
        """since: when the repetition began, nanoseconds of the run's clock; None: now."""
        self.since = time.monotonic_ns() if since is None else since
        self._silences: list[Silence] = []
        self._outages: list[tuple[str, Outage]] = []

    def heed(self, machine: str, events: Events) -> None:
        """Take the events of a machine during the repetition, on the run's clock."""
        self._silences += silences(events, machine)
        self._outages += [(machine, outage) for outage in outages(events)]

    def silence_findings(self) -> list[Finding]:
        return [silence.finding(self.since) for silence in self._silences]

    def causes(self, error: Exception) -> Iterable[Finding]:
        lost = error.findings() if isinstance(error, MachineLostError) else []
        here = [
            replace(outage.finding(), link=outage.node or f"machine {machine}") for machine, outage in self._outages
        ]
        return [*lost, *self.silence_findings(), *here]

    def disturbances(self) -> list[Disturbance]:
        return [
            *(silence.disturbance() for silence in self._silences),
            *(outage.disturbance() for _, outage in self._outages),
        ]

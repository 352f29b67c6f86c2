"""A workload on a cluster that is spread over machines: each machine's worker runs its part, all in step.

The run's clock is the controller's: each machine is told how far that is ahead of its own, by the shortest of some round
trips, half of which is the most by which it can be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError
from typing import Any, Final, cast

from testbed.controller.runs.execution import Execution, Plan
from testbed.controller.runs.folders import Part
from testbed.controller.runs.machine_part import RUN
from testbed.controller.verdict.machine_outages import MachineLostError, WatchedMachines
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import TestbedError
from testbed.machines.remote_workers import WorkerLostError
from testbed.machines.request_line import GO_ON, STOP
from testbed.machines.spread import MachineClock, Underlay, Workers, clock_of, measured_underlays
from testbed.machines.spread_faults import SpreadState, spread_state
from testbed.runtime.nodes.node_run import ProgramError

_PATIENCE: Final = 120.0  # s for a machine beyond the run's timeout: starting its programs, sending its results


@dataclass(frozen=True, slots=True)
class SpreadCluster:
    """A running cluster, and the workers of its machines."""

    name: str
    running: Workers

    def state(self) -> SpreadState:
        return spread_state(self.running, self.name)


def execute(
    cluster: SpreadCluster,
    plan: Plan,
    part: Part,
    watched: WatchedMachines,
    tell: Callable[[list[Mapping[str, object]]], object],
) -> Execution:
    """Run a workload on all nodes, and collect in the part's folder what the machines have written. watched: gets the
    machines' events. tell: called with them. An error on one machine ends the run on all: ProgramError, MachineLostError,
    or TestbedError."""
    state = cluster.state()
    clocks = {machine: clock_of(worker, "clock", time.monotonic_ns) for machine, worker in state.holders.items()}
    before = measured_underlays(state.holders, state.parts, carry=True)
    request = {"name": cluster.name, "asked": plan.asked, "seed": plan.seed, "history": plan.history}
    numbers = {
        machine: worker.begin(RUN, **request, ahead=clocks[machine].ahead) for machine, worker in state.holders.items()
    }
    replies, lost = _in_step(state.holders, numbers, plan.timeout + _PATIENCE)
    for machine, reply in replies.items():
        _collect(reply, part)
        events = [{**event, "clock": event["clock"] + clocks[machine].ahead} for event in reply["events"]]
        watched.heed(machine, events)
        tell([{"machine": machine, **event} for event in events])
    if lost:
        raise MachineLostError({machine: loss.sentence(watched.since) for machine, loss in lost.items()})
    failed = [(machine, reply) for machine, reply in replies.items() if "error" in reply]
    if failed:
        # The others only say that another one has failed.
        machine, reply = next(((m, r) for m, r in failed if r["class"] != TestbedError.__name__), failed[0])
        raise _error(machine, reply)
    try:
        after = measured_underlays(state.holders, state.parts, carry=False)
    except WorkerLostError as error:
        loss = _Loss(str(error), time.monotonic_ns())
        raise MachineLostError({error.machine: loss.sentence(watched.since)}) from error
    return Execution(
        {rank: result for reply in replies.values() for rank, result in reply["results"].items()},
        {rank: counts for reply in replies.values() for rank, counts in reply["counted"].items()},
        joint_verdict(replies, [*before, *after], clocks, watched.silence_findings()),
        switches={name: counts for reply in replies.values() for name, counts in reply["switches"].items()},
    )


@dataclass(frozen=True, slots=True)
class _Loss:
    """Loss of a machine's worker. reason: a sentence. when: it was noticed, nanoseconds of the run's clock."""

    reason: str
    when: int

    def sentence(self, since: int) -> str:
        """Return the sentence with seconds after a time."""
        after = (self.when - since) / 1e9
        return f"{self.reason}, {after:.2f} s after the repetition began; what its programs had written is lost"


Replies = dict[str, Mapping[str, Any]]


def _in_step(running: Workers, numbers: Mapping[str, int], patience: float) -> tuple[Replies, dict[str, _Loss]]:
    """Let the machines' parts of a run go on together; return their replies, and the machines that were lost. If one fails
    or is lost, the others are stopped."""
    together = Barrier(len(numbers))
    under_way = {*numbers}

    def fail(machine: str) -> None:
        together.abort()
        for other in under_way - {machine}:
            with suppress(WorkerLostError):  # its own thread tells
                running[other].answer_joint(numbers[other], STOP)

    def follow(machine: str) -> Mapping[str, Any] | _Loss:
        worker, number = running[machine], numbers[machine]
        try:
            while True:
                reached, reply = worker.joint(number, patience)
                if not reached:
                    break
                with suppress(BrokenBarrierError):  # it is stopped, and says so in its reply
                    together.wait()
                    worker.answer_joint(number, GO_ON)
        except WorkerLostError as error:
            loss = _Loss(str(error), time.monotonic_ns())
            under_way.discard(machine)
            fail(machine)
            return loss
        except TestbedError:
            under_way.discard(machine)
            fail(machine)
            raise
        under_way.discard(machine)
        if "error" in reply:
            fail(machine)
        return cast(Mapping[str, Any], reply)

    with ThreadPoolExecutor(len(numbers)) as pool:
        started = {machine: pool.submit(follow, machine) for machine in numbers}
    found = {machine: future.result() for machine, future in started.items()}
    lost = {machine: loss for machine, loss in found.items() if isinstance(loss, _Loss)}
    return {machine: reply for machine, reply in found.items() if not isinstance(reply, _Loss)}, lost


def _collect(reply: Mapping[str, Any], part: Part) -> None:
    """Write what a machine's programs have written."""
    for name, text in reply["files"].items():
        path = part.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for row in reply["rows"]:
        part.rows.write({"repeat": part.number, **row} if part.number else row)


def _error(machine: str, reply: Mapping[str, Any]) -> TestbedError:
    error = f"machine {machine}: {reply['error']}"
    return ProgramError(error) if reply["class"] == ProgramError.__name__ else TestbedError(error)


def joint_verdict(
    replies: Mapping[str, Mapping[str, Any]],
    measured: Sequence[Underlay],
    clocks: Mapping[str, MachineClock],
    silences: Sequence[Finding] = (),
) -> Verdict:
    """Return the verdict of all machines together, in which a finding on a whole machine names it. replies: of the machines.
    measured: the networks between them, before and after the run. silences: findings on machines that did not answer."""
    verdicts = {machine: reply["verdict"] for machine, reply in replies.items()}
    findings = [
        Finding(**{**finding, "grade": Grade(finding["grade"]), "link": finding["link"] or f"machine {machine}"})
        for machine, verdict in verdicts.items()
        for finding in verdict["findings"]
    ]
    findings += [*_underlay_findings(measured), *_clock_findings(clocks), *silences]
    notes = [f"machine {machine}: {note}" for machine, verdict in verdicts.items() for note in verdict["notes"]]
    return verdict_of(findings, notes, max(verdict["seconds"] for verdict in verdicts.values()))


def _underlay_findings(measured: Sequence[Underlay]) -> Iterator[Finding]:
    """Findings on the networks between machines: variation and loss, the worst of all measurements."""
    for pair in dict.fromkeys(underlay.machines for underlay in measured):
        found = [underlay for underlay in measured if underlay.machines == pair]
        where = " - ".join(pair)
        jitter, loss = max(underlay.spread for underlay in found), max(underlay.loss for underlay in found)
        yield Finding("underlay jitter", where, "", None, jitter, "ns", Grade.TRUSTED)
        reason = "links between these machines lose frames that no impairment has" if loss else ""
        grade = Grade.INVALID if loss == 1 else Grade.DEGRADED if loss else Grade.TRUSTED
        yield Finding("underlay loss", where, "", 0, loss, "", grade, reason)


def _clock_findings(clocks: Mapping[str, MachineClock]) -> Iterator[Finding]:
    """Findings on the machines' clocks: by how much the times of their histories can be wrong."""
    for machine, clock in clocks.items():
        yield Finding("clock offset", f"machine {machine}", "", 0, clock.within, "ns", Grade.TRUSTED)

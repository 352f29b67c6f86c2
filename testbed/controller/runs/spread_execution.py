"""Execution of a workload on a cluster that is spread over machines: each machine's worker runs its part, in step.

The run's clock is the controller's. Each machine gets the offset of that clock from its own, measured by the shortest of
several round trips; the error of the offset is at most half of that round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from testbed.controller.runs.execution import Execution, Plan
from testbed.controller.runs.folders import RepetitionFiles
from testbed.controller.runs.machine_part import RUN
from testbed.controller.scenarios.machine_reports import SpreadScenario
from testbed.controller.verdict.machine_outages import MachineLostError, MachineOutages
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import TestbedError
from testbed.machines.joint_calls import Loss, in_step
from testbed.machines.remote_workers import WorkerLostError
from testbed.machines.spread import MachineClock, Underlay, Workers, clock_of, measured_underlays
from testbed.machines.spread_faults import SpreadState, spread_state
from testbed.runtime.nodes.node_run import ProgramError
from testbed.workloads.lookup import file_of

_EXTRA_TIMEOUT: Final = 120.0  # s beyond the run's timeout, for a machine to start programs and send results


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
    files: RepetitionFiles,
    outages: MachineOutages,
    add_events: Callable[[list[Mapping[str, object]]], object],
    scenario: SpreadScenario | None = None,
) -> Execution:
    """Run a workload on all nodes, and write the files of all machines to the repetition's folder. outages, add_events: get
    the machines' events. scenario: played during the run. An error on one machine ends the run on all machines. Raises
    ProgramError, MachineLostError, TestbedError."""
    state = cluster.state()
    clocks = {machine: clock_of(worker, "clock", time.monotonic_ns) for machine, worker in state.workers.items()}
    before = measured_underlays(state.workers, state.parts, carry=True)
    request = {"name": cluster.name, "asked": plan.request, "seed": plan.seed, "history": plan.history,
               "source": _source(str(plan.request["form"])),
               "ranks": [asdict(rank) for rank in plan.ranks], "queues": asdict(plan.queues),
               "scenario": scenario.request(state) if scenario is not None else None}  # fmt: skip
    numbers = {
        machine: worker.begin(RUN, **request, ahead=clocks[machine].ahead) for machine, worker in state.workers.items()
    }
    replies, lost = in_step(state.workers, numbers, plan.timeout + _EXTRA_TIMEOUT)
    for machine, reply in replies.items():
        _write_files(reply, files)
        events = [{**event, "clock": event["clock"] + clocks[machine].ahead} for event in reply["events"]]
        outages.add_events(machine, events)
        add_events([{"machine": machine, **event} for event in events])
    if scenario is not None:
        scenario.take(reply["scenario"] for reply in replies.values() if reply.get("scenario"))
    if lost:
        raise MachineLostError({machine: loss_sentence(loss, outages.since) for machine, loss in lost.items()})
    failed = [(machine, reply) for machine, reply in replies.items() if "error" in reply]
    if failed:
        # On the other machines, a plain TestbedError only says that another machine has failed.
        machine, reply = next(((m, r) for m, r in failed if r["class"] != TestbedError.__name__), failed[0])
        raise _error(machine, reply)
    try:
        after = measured_underlays(state.workers, state.parts, carry=False)
    except WorkerLostError as error:
        loss = Loss(error, time.monotonic_ns())
        raise MachineLostError({error.machine: loss_sentence(loss, outages.since)}) from error
    return Execution(
        {rank: result for reply in replies.values() for rank, result in reply["results"].items()},
        {rank: counts for reply in replies.values() for rank, counts in reply["counted"].items()},
        joint_verdict(replies, [*before, *after], clocks, outages.silence_findings()),
        switches={name: counts for reply in replies.values() for name, counts in reply["switches"].items()},
    )


def _source(form: str) -> str:
    """Return the text of a workload's file; empty if the workload has none. Raises TestbedError if it cannot be read."""
    path = file_of(form)
    try:
        return path.read_text(encoding="utf-8") if path is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise TestbedError(f"{path} cannot be read: {error}") from error


def loss_sentence(loss: Loss, since: int) -> str:
    """Return a sentence on the loss of a machine. since: start of the repetition, monotonic nanoseconds."""
    after = (loss.when - since) / 1e9
    return f"{loss.error}, {after:.2f} s after the repetition began; the files of its programs are lost"


def _write_files(reply: Mapping[str, Any], files: RepetitionFiles) -> None:
    """Write the files and rows of a machine's programs."""
    for name, text in reply["files"].items():
        path = files.folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:  # some files are of all machines
            file.write(text)
    for row in reply["rows"]:
        files.rows.write({"repeat": files.number, **row} if files.number else row)


def _error(machine: str, reply: Mapping[str, Any]) -> TestbedError:
    error = f"machine {machine}: {reply['error']}"
    return ProgramError(error) if reply["class"] == ProgramError.__name__ else TestbedError(error)


def joint_verdict(
    replies: Mapping[str, Mapping[str, Any]],
    measured: Sequence[Underlay],
    clocks: Mapping[str, MachineClock],
    silences: Sequence[Finding] = (),
) -> Verdict:
    """Join the verdicts of all machines. A finding on a complete machine gets the machine's name. replies: by machine.
    measured: networks between machines, before and after the run. silences: findings on machines that did not answer."""
    verdicts = {machine: reply["verdict"] for machine, reply in replies.items()}
    findings = machine_findings(verdicts)
    findings += [*underlay_findings(measured), *clock_findings(clocks), *silences]
    notes = [f"machine {machine}: {note}" for machine, verdict in verdicts.items() for note in verdict["notes"]]
    return verdict_of(findings, notes, max(verdict["seconds"] for verdict in verdicts.values()))


def machine_findings(verdicts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return the findings of the machines' verdicts. A finding on a complete machine gets its name. verdicts: as in JSON."""
    return [
        Finding(**{**finding, "grade": Grade(finding["grade"]), "link": finding["link"] or f"machine {machine}"})
        for machine, verdict in verdicts.items()
        for finding in verdict["findings"]
    ]


def underlay_findings(measured: Sequence[Underlay]) -> Iterator[Finding]:
    """Yield findings on the networks between machines: the greatest jitter and loss of all measurements."""
    for pair in dict.fromkeys(underlay.machines for underlay in measured):
        underlays = [underlay for underlay in measured if underlay.machines == pair]
        where = " - ".join(pair)
        jitter, loss = max(underlay.spread for underlay in underlays), max(underlay.loss for underlay in underlays)
        yield Finding("underlay jitter", where, "", None, jitter, "ns", Grade.TRUSTED)
        reason = "links between these machines lose frames beyond their impairments" if loss else ""
        grade = Grade.INVALID if loss == 1 else Grade.DEGRADED if loss else Grade.TRUSTED
        yield Finding("underlay loss", where, "", 0, loss, "", grade, reason)


def clock_findings(clocks: Mapping[str, MachineClock]) -> Iterator[Finding]:
    """Yield findings on the machines' clocks: the maximum error of the times in their histories."""
    for machine, clock in clocks.items():
        yield Finding("clock offset", f"machine {machine}", "", 0, clock.error, "ns", Grade.TRUSTED)

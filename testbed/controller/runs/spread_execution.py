"""Execution of a workload on a cluster that is spread over machines: each machine's worker runs its part, in step.

The run's clock is the controller's. Each machine gets the offset of that clock from its own, measured by the shortest of
several round trips; the error of the offset is at most half of the shortest round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from testbed.controller.runs.execution import Execution, Plan
from testbed.controller.runs.folders import RepetitionFiles
from testbed.controller.runs.machine_part import RUN
from testbed.controller.scenarios.machine_reports import SpreadScenario
from testbed.controller.verdict.machine_outages import MachineLostError, MachineOutages
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import (
    ConflictError,
    FirmwareError,
    KernelError,
    NotFoundError,
    PermissionDeniedError,
    TestbedError,
    UnreadableStateError,
    UnsupportedError,
)
from testbed.machines.joint_calls import WorkerLoss, run_joint_call
from testbed.machines.remote_workers import CALL_TIMEOUT, WorkerLostError
from testbed.machines.request_reader import STOP
from testbed.machines.spread import MachineClock, Underlay, Workers, clock_of, measured_underlays
from testbed.machines.spread_faults import SpreadState, spread_state
from testbed.runtime.nodes.node_run import ClusterEndedError, NodeDiedError, ProgramError, StuckError
from testbed.workloads.lookup import file_of

_EXTRA_TIMEOUT: Final = 120.0  # s beyond the run's timeout, for a machine to start programs and send results
_BEFORE: Final = "before its programs were started"  # stages at which a machine may be lost
_DURING: Final = "the files of its programs are lost"
_AFTER: Final = "when all programs had ended"
_ERRORS: Final[Mapping[str, type[TestbedError]]] = {
    error_class.__name__: error_class
    for error_class in (
        ClusterEndedError,
        ConflictError,
        KernelError,
        NotFoundError,
        PermissionDeniedError,
        ProgramError,
        UnreadableStateError,
        UnsupportedError,
    )
}
"""Classes of a machine's error that take only a message."""


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
    the machines' events. scenario: played during the run. An error on one machine ends the run on all machines. The result
    names a machine that is lost when all programs have ended. Raises MachineLostError, and the errors of `run_live`."""
    with _losses_before_start(outages):
        state = cluster.state()
        clocks = {machine: clock_of(worker, "clock", time.monotonic_ns) for machine, worker in state.workers.items()}
        before = measured_underlays(state.workers, state.parts, must_answer=True)
    request = {"name": cluster.name, "asked": plan.request, "seed": plan.seed, "history": plan.history,
               "source": _source(str(plan.request["form"])),
               "ranks": [asdict(rank) for rank in plan.ranks], "queues": asdict(plan.queues),
               "scenario": scenario.request(state) if scenario is not None else None}  # fmt: skip
    with _losses_before_start(outages):
        numbers = _begin(state.workers, request, clocks)
    replies, lost = run_joint_call(state.workers, numbers, plan.timeout + _EXTRA_TIMEOUT)
    for machine, reply in replies.items():
        _write_files(reply, files)
        events = [{**event, "clock": event["clock"] + clocks[machine].ahead} for event in reply["events"]]
        outages.add_events(machine, events)
        add_events([{"machine": machine, **event} for event in events])
    if scenario is not None:
        scenario.add_reports(reply["scenario"] for reply in replies.values() if reply.get("scenario"))
    if lost:
        raise MachineLostError({machine: loss_sentence(loss, outages.since, _DURING) for machine, loss in lost.items()})
    failed = [(machine, reply) for machine, reply in replies.items() if "error" in reply]
    if failed:
        # A plain TestbedError only reports that another machine has failed.
        causes = [(machine, reply) for machine, reply in failed if reply["class"] != TestbedError.__name__]
        machine, reply = (causes or failed)[0]
        raise _error(machine, reply)
    after: list[Underlay] = []
    lost_afterwards: MachineLostError | None = None
    try:
        after = measured_underlays(state.workers, state.parts, must_answer=False)
    except WorkerLostError as error:
        lost_afterwards = _machine_lost(error, outages, _AFTER)
    return Execution(
        {rank: result for reply in replies.values() for rank, result in reply["results"].items()},
        {rank: counts for reply in replies.values() for rank, counts in reply["counted"].items()},
        joint_verdict(replies, [*before, *after], clocks, outages.silence_findings()),
        switches={name: counts for reply in replies.values() for name, counts in reply["switches"].items()},
        lost=lost_afterwards,
    )


@contextmanager
def _losses_before_start(outages: MachineOutages) -> Iterator[None]:
    """Raise MachineLostError for a worker that is lost in the block."""
    try:
        yield
    except WorkerLostError as error:
        raise _machine_lost(error, outages, _BEFORE) from error


def _machine_lost(error: WorkerLostError, outages: MachineOutages, stage: str) -> MachineLostError:
    loss = WorkerLoss(error, time.monotonic_ns())
    return MachineLostError({error.machine: loss_sentence(loss, outages.since, stage)})


def _begin(workers: Workers, request: Mapping[str, object], clocks: Mapping[str, MachineClock]) -> dict[str, int]:
    """Begin the run on all machines; return the calls' numbers. If a worker is lost, end the run on the others, which hold
    the cluster's lock until then, and raise WorkerLostError."""
    numbers: dict[str, int] = {}
    try:
        for machine, worker in workers.items():
            numbers[machine] = worker.begin(RUN, **request, ahead=clocks[machine].ahead)
    except WorkerLostError:
        for machine, number in numbers.items():
            with suppress(TestbedError):
                workers[machine].answer_joint(number, STOP)
        for machine, number in numbers.items():
            with suppress(TestbedError):  # the loss is raised instead
                while workers[machine].joint(number, CALL_TIMEOUT)[0]:
                    pass
        raise
    return numbers


def _source(form: str) -> str:
    """Return the text of a workload's file; empty if the workload has none. Raises TestbedError if it cannot be read."""
    path = file_of(form)
    try:
        return path.read_text(encoding="utf-8") if path is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise TestbedError(f"{path} cannot be read: {error}") from error


def loss_sentence(loss: WorkerLoss, since: int, stage: str) -> str:
    """Return a sentence on the loss of a machine. since: start of the repetition, monotonic nanoseconds. stage: when the
    machine was lost, or what was lost with it."""
    after = (loss.when - since) / 1e9
    return f"{loss.error}, {after:.2f} s after the repetition began; {stage}"


def _write_files(reply: Mapping[str, Any], files: RepetitionFiles) -> None:
    """Write the files and rows of a machine's programs."""
    for name, text in reply["files"].items():
        path = files.folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:  # some files are written by several machines
            file.write(text)
    for row in reply["rows"]:
        files.rows.write({"repeat": files.number, **row} if files.number else row)


def _error(machine: str, reply: Mapping[str, Any]) -> TestbedError:
    """Return the error that ended the run on a machine, with its class there, on which checkers, verdicts and exit codes
    depend; a TestbedError for a class that is not known here."""
    message = f"machine {machine}: {reply['error']}"
    if reply["class"] == FirmwareError.__name__:
        firmware_error = FirmwareError(reply["what"], reply["when"])
        firmware_error.args = (message,)
        return firmware_error
    if reply["class"] == NodeDiedError.__name__:
        return NodeDiedError(message, reply["nodes"])
    if reply["class"] == StuckError.__name__:
        stuck = StuckError("", reply["waiting"])
        stuck.args = (message,)  # the message already names the waiting nodes
        return stuck
    return _ERRORS.get(reply["class"], TestbedError)(message)


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
    """Return the findings of the machines' verdicts. A finding on a complete machine gets the machine's name. verdicts: as
    in JSON."""
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
    """Yield findings on the machines' clocks: the error of the offset measured before the run, without
    drift."""
    for machine, clock in clocks.items():
        yield Finding("clock offset", f"machine {machine}", "", 0, clock.error, "ns", Grade.TRUSTED)

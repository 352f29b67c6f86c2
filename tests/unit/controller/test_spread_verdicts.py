"""Runs on several machines: the verdicts of all machines, findings on the networks and clocks between them, errors of one
machine, and lost machines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from testbed.controller.runs import spread_execution
from testbed.controller.runs.execution import Execution, Plan
from testbed.controller.runs.folders import RepetitionFiles
from testbed.controller.runs.machine_part import failure_reply
from testbed.controller.runs.spread_execution import SpreadCluster, execute, joint_verdict
from testbed.controller.verdict.machine_outages import MachineLostError, MachineOutages
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict
from testbed.errors import ConflictError, FirmwareError, KernelError, NotFoundError, TestbedError
from testbed.machines.remote_workers import WorkerLostError
from testbed.machines.request_reader import STOP
from testbed.machines.spread import MachineClock, Underlay
from testbed.machines.spread_faults import SpreadState
from testbed.runtime.nodes.node_run import NodeDiedError, ProgramError, StuckError
from testbed.runtime.shared.workers import ReceiveQueues

CLOCKS = {"a": MachineClock(-5, 200_000), "b": MachineClock(70, 300_000)}
QUIET = Underlay(("a", "b"), 1_000_000, 40_000, 0.0)
LOSSY = Underlay(("a", "b"), 1_000_000, 90_000, 0.05)
FINDING = {**asdict(Finding("processor", "", "", None, 0.5, "", Grade.DEGRADED)), "grade": "degraded"}


def verdict_on(*underlays: Underlay, findings: object = ()) -> Verdict:
    replies = {
        machine: {"verdict": {"seconds": 1.5, "notes": ["slow"], "findings": findings}} for machine in ("a", "b")
    }
    return joint_verdict(replies, underlays, CLOCKS)


def grades_by_link(verdict: Verdict) -> dict[tuple[str, str], tuple[object, Grade]]:
    return {(finding.what, finding.link): (finding.measured, finding.grade) for finding in verdict.findings}


def test_networks_and_clocks_between_machines_are_in_the_verdict() -> None:
    run_verdict = verdict_on(QUIET, QUIET)
    assert grades_by_link(run_verdict) == {
        ("underlay jitter", "a - b"): (40_000, Grade.TRUSTED),
        ("underlay loss", "a - b"): (0.0, Grade.TRUSTED),
        ("clock offset", "machine a"): (200_000, Grade.TRUSTED),
        ("clock offset", "machine b"): (300_000, Grade.TRUSTED),
    }
    assert (run_verdict.grade, run_verdict.seconds) == (Grade.TRUSTED, 1.5)
    assert run_verdict.notes == ("machine a: slow", "machine b: slow")


def test_the_worst_of_all_measurements_counts_and_a_loss_degrades() -> None:
    run_verdict = verdict_on(LOSSY, QUIET)
    assert grades_by_link(run_verdict)["underlay jitter", "a - b"] == (90_000, Grade.TRUSTED)
    assert grades_by_link(run_verdict)["underlay loss", "a - b"] == (0.05, Grade.DEGRADED)
    assert run_verdict.grade is Grade.DEGRADED


def test_findings_on_a_machine_name_it() -> None:
    grades = grades_by_link(verdict_on(QUIET, findings=(FINDING,)))
    assert grades["processor", "machine a"] == grades["processor", "machine b"] == (0.5, Grade.DEGRADED)


def test_an_unreachable_network_between_machines_makes_a_run_invalid() -> None:
    run_verdict = verdict_on(QUIET, Underlay(("a", "b"), 0, 0, 1.0))
    assert grades_by_link(run_verdict)["underlay loss", "a - b"] == (1.0, Grade.INVALID)


# Executions on workers that answer without machines

COMPLETED = {
    "files": {"history/n1.jsonl": "{}\n"}, "rows": [], "events": [], "results": {}, "counted": {}, "switches": {},
    "verdict": {"seconds": 1.0, "notes": [], "findings": []},
}  # fmt: skip


@dataclass
class FakeWorker:
    """A worker that is lost at the call `lost_at`, or answers a run with `reply`."""

    name: str
    lost_at: str = ""
    reply: Mapping[str, Any] = field(default_factory=lambda: COMPLETED)
    sent: list[str] = field(default_factory=list)

    def reach(self, call: str) -> None:
        if call == self.lost_at:
            raise WorkerLostError(self.name, f"machine {self.name}: gone")

    def call(self, method: str) -> int:
        self.reach(method)
        return time.monotonic_ns()

    def begin(self, method: str, **_: object) -> int:
        self.reach(method)
        return 1

    def joint(self, _number: int, _timeout: float) -> tuple[str, Any]:
        self.reach("joint")
        return "", self.reply

    def answer_joint(self, _number: int, word: str) -> None:
        self.sent.append(word)


def execute_on(monkeypatch: pytest.MonkeyPatch, folder: Path, *workers: FakeWorker) -> Execution:
    """Execute a workload on fake workers. The network between them is measured before and after the run."""
    by_name = {worker.name: worker for worker in workers}

    def measure(_running: object, _parts: object, *, must_answer: bool) -> list[Underlay]:
        for worker in workers:
            worker.reach("measure before" if must_answer else "measure after")
        return []

    state = SpreadState(cast(Any, by_name), {}, cast(Any, None), (), 0)
    monkeypatch.setattr(SpreadCluster, "state", lambda _: state)
    monkeypatch.setattr(spread_execution, "measured_underlays", measure)
    plan = Plan(cast(Any, None), cast(Any, None), 0, 1.0, None, False, False, (), None,
                queues=ReceiveQueues(), request={"form": "pingpong"})  # fmt: skip
    files = cast(RepetitionFiles, FakeFiles(folder))
    return execute(SpreadCluster("c", cast(Any, by_name)), plan, files, MachineOutages(), list)


@dataclass
class FakeFiles:
    """Files of a repetition without rows."""

    folder: Path


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (StuckError("no progress", {"n1": ["receives from 1"]}), StuckError, 1),
        (NodeDiedError("n1 was killed", ["n1"]), NodeDiedError, 1),
        (ProgramError("n1: ValueError"), ProgramError, 1),
        (ConflictError("another run"), ConflictError, 5),
        (NotFoundError("no such file"), NotFoundError, 4),
        (KernelError("no memory"), KernelError, 7),
        (FirmwareError("a descriptor without an owner", 17, "n1"), FirmwareError, 1),
        (TestbedError("unknown"), TestbedError, 1),
    ],
)
def test_an_error_of_a_machine_has_the_class_that_it_has_on_one_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: TestbedError, kind: type[TestbedError], code: int
) -> None:
    reply = {"files": {}, "rows": [], "events": [], **failure_reply(error)}
    with pytest.raises(kind) as caught:
        execute_on(monkeypatch, tmp_path, FakeWorker("a", reply=reply), FakeWorker("b"))
    assert (type(caught.value), str(caught.value)) == (kind, f"machine a: {error}")
    assert caught.value.exit_code == code
    if isinstance(error, FirmwareError):
        assert (cast(FirmwareError, caught.value).what, cast(FirmwareError, caught.value).when) == (error.what, 17)
    if isinstance(error, NodeDiedError):
        assert cast(NodeDiedError, caught.value).nodes == ("n1",)
    if isinstance(error, StuckError):
        assert cast(StuckError, caught.value).waiting == {"n1": ["receives from 1"]}


@pytest.mark.parametrize("call", ["clock", "measure before", "run"])
def test_a_machine_lost_before_the_programs_start_makes_the_run_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    with pytest.raises(MachineLostError, match=r"machine b: gone, 0\.\d\d s after .* before its programs were started"):
        execute_on(monkeypatch, tmp_path, FakeWorker("a"), FakeWorker("b", lost_at=call))


def test_a_machine_lost_at_the_start_stops_the_run_on_those_that_have_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workers = FakeWorker("a"), FakeWorker("b"), FakeWorker("c", lost_at="run")
    with pytest.raises(MachineLostError, match="machine c"):
        execute_on(monkeypatch, tmp_path, *workers)
    assert [worker.sent for worker in workers] == [[STOP], [STOP], []]


def test_a_machine_lost_during_the_run_loses_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(MachineLostError, match="the files of its programs are lost"):
        execute_on(monkeypatch, tmp_path, FakeWorker("a"), FakeWorker("b", lost_at="joint"))


def test_a_machine_lost_after_the_run_has_its_files_in_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    execution = execute_on(monkeypatch, tmp_path, FakeWorker("a"), FakeWorker("b", lost_at="measure after"))
    assert (tmp_path / "history" / "n1.jsonl").read_text() == "{}\n" * 2  # of both machines
    assert isinstance(execution.lost, MachineLostError)
    assert str(execution.lost).endswith("s after the repetition began; when all programs had ended")

"""Check the histories of a run: of each repetition when it ends, and again from the run's folder."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from testbed import json_text
from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.disturbances import CRASH, Disturbance
from testbed.controller.checkers.histories import read_histories
from testbed.controller.checkers.promises import BOUND, Circumstances, Ending, check_histories
from testbed.controller.checkers.request_promises import check_requests
from testbed.controller.checkers.request_records import read_requests
from testbed.controller.runs.execution import Execution
from testbed.controller.runs.folders import RepetitionFiles
from testbed.controller.runs.run_recorder import RunRecorder
from testbed.controller.verdict.machine_outages import MachineLostError
from testbed.controller.verdict.verdicts import Finding, verdict_of
from testbed.errors import NotFoundError
from testbed.observe.recorded import RecordedRun, read_document, read_layout
from testbed.runtime.journal import BrokenFileError, UnwritableError, read_numbered, write_atomically
from testbed.runtime.nodes.node_run import NodeDiedError, ProgramError, StuckError
from testbed.sim.simulation import StalledError
from testbed.spec.placement import ranks_of
from testbed.workloads.active_messages.request_history import BEGIN

T = TypeVar("T")

CHECKS = "checks.json"
"""File in a repetition's folder: the checkers' report, and the circumstances on which it is based."""


@runtime_checkable
class DisturbanceSource(Protocol):
    """Source of the disturbances of the last repetition, such as a companion of the run."""

    def disturbances(self) -> Iterable[Disturbance]: ...


class RepetitionChecker:
    """Checker of a run's repetitions. reports: reports of the checked repetitions."""

    def __init__(
        self, recorder: RunRecorder, names: Sequence[str], patience: float | None, companions: Iterable[object]
    ) -> None:
        """recorder: recorder of the run, to whose result a summary is added. names: by rank. patience: as for `run`.
        companions: companions of the run; those that are a `DisturbanceSource` are asked for disturbances."""
        self.reports: list[Report] = []
        self._recorder = recorder
        self._names = names
        self._patience = patience
        self._companions = [companion for companion in companions if isinstance(companion, DisturbanceSource)]
        self._outages: list[DisturbanceSource] = []

    @contextmanager
    def check_repetition(self, files: RepetitionFiles, outages: DisturbanceSource | None = None) -> Iterator[None]:
        """Check the repetition that is executed in the block. outages: outages of the testbed's own processes."""
        self._outages = [outages] if outages is not None else []
        try:
            yield
        except MachineLostError as error:  # the machine's histories are lost, and the others cannot be checked alone
            self._recorder.add_result(lost=error.lost)
            raise
        except Exception as error:
            with suppress(UnwritableError):  # the error that ended the repetition is raised instead
                self._check(files, *_ending(error), *_node_deaths(error))
            raise
        self._check(files, Ending.DONE, -1, False)

    def findings(self) -> list[Finding]:
        """Return the findings on the last checked repetition."""
        return self.reports[-1].findings() if self.reports else []

    def add_to(self, execution: Execution) -> Execution:
        """Add the last report to an execution and its findings to its verdict."""
        report, verdict = self.reports[-1], execution.verdict
        combined = verdict_of(
            [*verdict.findings, *report.findings()], (*verdict.notes, *report.notes), verdict.seconds, verdict.slow
        )
        return replace(execution, verdict=combined, checks=report)

    def _check(
        self, files: RepetitionFiles, ending: Ending, end: int, settled: bool, *node_deaths: Disturbance
    ) -> None:
        sources = [*self._companions, *self._outages]
        disturbances = (*(disturbance for source in sources for disturbance in source.disturbances()), *node_deaths)
        bound = BOUND if self._patience is None or ending is Ending.DONE else min(BOUND, self._patience)
        circumstances = Circumstances(ending, end, disturbances, bound, settled=settled)
        report = _check_folder(files.history, self._names, circumstances)
        self.reports.append(report)
        self._recorder.add_result(checks=[_summary(report) for report in self.reports])
        text = json.dumps(
            {**report.to_json(), "circumstances": _circumstances_to_json(circumstances)}, ensure_ascii=False, indent=1
        )
        write_atomically(files.folder / CHECKS, text + "\n")
        for check in report.checks.values():
            if check.failed:
                row = {"check": check.name, "checked": check.checked, "failed": check.failed}
                files.rows.write({"repeat": files.number, **row} if files.number else row)


def recheck(run: RecordedRun) -> list[Report]:
    """Check each repetition in a run's folder again. Raises NotFoundError if no history was written, histories were lost
    with a machine, or the disturbances of a scenario are unknown because the run was not checked; TestbedError for a broken
    file."""
    if lost := run.result.get("lost"):
        raise NotFoundError(f"{run.folder} lacks histories: {'; '.join(lost.values())}")
    folders = _folders(run, "history")
    if not folders:
        raise NotFoundError(f"{run.folder} has no history: 'testbed run --check' and '--history' write one")
    names = [rank.name for rank in ranks_of(read_layout(run.folder))]
    return [_check_folder(folder / "history", names, _read_circumstances(run, folder)) for folder in folders]


def _check_folder(folder: Path, names: Sequence[str], circumstances: Circumstances) -> Report:
    """Check the histories in a folder: of active messages, which start with a BEGIN event, or of MPI calls."""
    first_events = (
        event for name in names for _, event in itertools.islice(read_numbered(folder / f"{name}.jsonl"), 1)
    )
    if any(event.get("what") == BEGIN for event in first_events):
        return check_requests(read_requests(folder, names), circumstances)
    return check_histories(read_histories(folder, names), circumstances)


def read_reports(run: RecordedRun) -> list[Report]:
    """Read the reports in a run's folder, one for each checked repetition. Raises TestbedError for a broken file."""
    return [_read_as(folder / CHECKS, Report.from_json) for folder in _folders(run, CHECKS)]


def _read_as(path: Path, convert: Callable[[Mapping[str, Any]], T]) -> T:
    """Read a JSON file and convert its document. Raises BrokenFileError."""
    document = read_document(path)
    try:
        return convert(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenFileError(
            f"{path} cannot be understood ({type(error).__name__}: {error}): it is damaged"
        ) from error


def _folders(run: RecordedRun, name: str) -> list[Path]:
    """Return the folders of repetitions that contain a file or folder of this name, in order."""
    folders = sorted((path.parent for path in run.folder.glob(f"repeat-*/{name}")), key=lambda path: int(path.name[7:]))
    return [*folders, run.folder] if (run.folder / name).exists() else folders


def _ending(error: Exception) -> tuple[Ending, int, bool]:
    """Return the kind of a run's end, its time (-1: of the last event), and whether it was settled: see `Circumstances`."""
    if isinstance(error, StalledError):
        return (Ending.STUCK if error.final else Ending.ABORTED), error.when, True
    if isinstance(error, StuckError):
        return Ending.ABORTED, time.monotonic_ns(), False
    if isinstance(error, ProgramError):
        return Ending.ABORTED, error.when, error.when >= 0
    return Ending.ABORTED, -1, False


def _node_deaths(error: Exception) -> Iterable[Disturbance]:
    """Yield a crash of the nodes whose processes died unexpectedly, if that ended the run."""
    if isinstance(error, NodeDiedError):
        yield Disturbance(CRASH, 0, nodes=frozenset(error.nodes), what=str(error).partition("\n")[0])


def _summary(report: Report) -> Mapping[str, object]:
    return {"passed": report.passed, "failed": list(report.failed), "ambiguous": len(report.ambiguities)}


def _circumstances_to_json(circumstances: Circumstances) -> Mapping[str, object]:
    return {
        "ending": circumstances.ending.value,
        "end_ns": circumstances.end,
        "bound_s": circumstances.bound,
        "settled": circumstances.settled,
        "disturbances": [
            {
                "kind": disturbance.kind,
                "begin_ns": disturbance.begin,
                "end_ns": disturbance.end,
                "nodes": sorted(disturbance.nodes),
                "what": disturbance.what,
            }
            for disturbance in circumstances.disturbances
        ],
    }


def _read_circumstances(run: RecordedRun, folder: Path) -> Circumstances:
    """Read the circumstances from the report's file; without one, derive them from the run's status. Raises NotFoundError if
    a scenario disturbed the run."""
    path = folder / CHECKS
    if not path.exists():
        if run.parameters.get("scenario"):
            raise NotFoundError(
                f"{folder} has no {CHECKS}, so the times of the scenario's faults are unknown: run the workload again with "
                "'testbed run --check'"
            )
        return Circumstances(Ending.DONE if run.status == "done" else Ending.ABORTED, settled=False)
    return _read_as(path, _circumstances_from_json)


def _circumstances_from_json(document: Mapping[str, Any]) -> Circumstances:
    fields = document["circumstances"]
    disturbances = tuple(
        Disturbance(entry["kind"], entry["begin_ns"], entry["end_ns"], frozenset(entry["nodes"]), entry["what"])
        for entry in fields["disturbances"]
    )
    settled = fields.get("settled", False)  # missing in the files of older runs
    circumstances = Circumstances(
        Ending(fields["ending"]), fields["end_ns"], disturbances, fields["bound_s"], settled=settled
    )
    json_text.check(circumstances.end, int, "end_ns")
    json_text.check(circumstances.bound, float, "bound_s")
    json_text.check(settled, bool, "settled")
    for disturbance in disturbances:
        json_text.check((disturbance.begin, disturbance.end), tuple[int, int], "disturbances")
        json_text.check((disturbance.kind, disturbance.what, *disturbance.nodes), tuple[str, ...], "disturbances")
    return circumstances

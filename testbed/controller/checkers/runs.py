"""Check a run: each repetition, however it ends, and again from its folder."""

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
from testbed.controller.runs.folders import Part
from testbed.controller.runs.run_recorder import KeptFolder
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
"""File in a repetition's folder: a report, and the circumstances it is based on."""


@runtime_checkable
class Disturbing(Protocol):
    """A companion of programs, such as a scenario, that reports how it disturbed them in the last repetition."""

    def disturbances(self) -> Iterable[Disturbance]: ...


class Checking:
    """Checker of a run's repetitions. reports: of the repetitions until now."""

    def __init__(
        self, folder: KeptFolder, names: Sequence[str], patience: float | None, beside: Iterable[object]
    ) -> None:
        """folder: the run's, whose result gets a summary. names: of the nodes, by rank. patience: as for `run`. beside:
        companions of the programs, of which some may be `Disturbing`."""
        self.reports: list[Report] = []
        self._folder = folder
        self._names = names
        self._patience = patience
        self._beside = [companion for companion in beside if isinstance(companion, Disturbing)]
        self._watched: list[Disturbing] = []

    @contextmanager
    def check_repetition(self, part: Part, watched: Disturbing | None = None) -> Iterator[None]:
        """Check the repetition that is carried out in the block. watched: outages of the testbed's own processes."""
        self._watched = [watched] if watched is not None else []
        try:
            yield
        except MachineLostError as error:  # with histories, without which the others cannot be understood
            self._folder.say(lost=error.lost)
            raise
        except Exception as error:
            with suppress(UnwritableError):  # the error that ended the repetition is raised instead
                self._check(part, *_ending(error), *_deaths(error))
            raise
        self._check(part, Ending.DONE, -1, False)

    def findings(self) -> list[Finding]:
        """Return the findings of the last repetition that was checked."""
        return self.reports[-1].findings() if self.reports else []

    def add_to(self, execution: Execution) -> Execution:
        """Add the last report to an execution and its findings to its verdict."""
        report, verdict = self.reports[-1], execution.verdict
        whole = verdict_of(
            [*verdict.findings, *report.findings()], (*verdict.notes, *report.notes), verdict.seconds, verdict.slow
        )
        return replace(execution, verdict=whole, checks=report)

    def _check(self, part: Part, ending: Ending, end: int, settled: bool, *more: Disturbance) -> None:
        disturbances = (
            *(disturbance for beside in [*self._beside, *self._watched] for disturbance in beside.disturbances()),
            *more,
        )
        bound = BOUND if self._patience is None or ending is Ending.DONE else min(BOUND, self._patience)
        circumstances = Circumstances(ending, end, disturbances, bound, settled=settled)
        report = _check_folder(part.history, self._names, circumstances)
        self.reports.append(report)
        self._folder.say(checks=[_summary(each) for each in self.reports])
        text = json.dumps(
            {**report.to_json(), "circumstances": _circumstances_to_json(circumstances)}, ensure_ascii=False, indent=1
        )
        write_atomically(part.folder / CHECKS, text + "\n")
        for check in report.checks.values():
            if check.failed:
                row = {"check": check.name, "checked": check.checked, "failed": check.failed}
                part.rows.write({"repeat": part.number, **row} if part.number else row)


def check_again(run: RecordedRun) -> list[Report]:
    """Check each repetition in a run's folder again. Raises NotFoundError where no history was written, or some were lost
    with a machine, TestbedError for a broken one."""
    if lost := run.result.get("lost"):
        raise NotFoundError(f"{run.folder} lacks histories: {'; '.join(lost.values())}")
    folders = _folders(run, "history")
    if not folders:
        raise NotFoundError(f"{run.folder} has no history: 'testbed run --check' and '--history' write one")
    names = [rank.name for rank in ranks_of(read_layout(run.folder))]
    return [_check_folder(folder / "history", names, _read_circumstances(folder, run.status)) for folder in folders]


def _check_folder(folder: Path, names: Sequence[str], circumstances: Circumstances) -> Report:
    """Check the histories in a folder: of active messages, which have a beginning of their own, or of MPI's calls."""
    first = (event for name in names for _, event in itertools.islice(read_numbered(folder / f"{name}.jsonl"), 1))
    if any(event.get("what") == BEGIN for event in first):
        return check_requests(read_requests(folder, names), circumstances)
    return check_histories(read_histories(folder, names), circumstances)


def written_reports(run: RecordedRun) -> list[Report]:
    """Read the reports written with the run, of each repetition that was checked. Raises TestbedError for a broken
    one."""
    return [_read_as(folder / CHECKS, Report.from_json) for folder in _folders(run, CHECKS)]


def _read_as(path: Path, make: Callable[[Mapping[str, Any]], T]) -> T:
    """Read a file's document and convert it. Raises BrokenFileError."""
    document = read_document(path)
    try:
        return make(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenFileError(
            f"{path} cannot be understood ({type(error).__name__}: {error}): it is damaged"
        ) from error


def _folders(run: RecordedRun, what: str) -> list[Path]:
    """Return the folders of the repetitions that contain a file of this name."""
    folders = sorted((path.parent for path in run.folder.glob(f"repeat-*/{what}")), key=lambda path: int(path.name[7:]))
    return [*folders, run.folder] if (run.folder / what).exists() else folders


def _ending(error: Exception) -> tuple[Ending, int, bool]:
    """Return how a run ended, when (-1: with the last event), and whether it was settled: see `Circumstances`."""
    if isinstance(error, StalledError):
        return (Ending.STUCK if error.final else Ending.BROKEN_OFF), error.when, True
    if isinstance(error, StuckError):
        return Ending.BROKEN_OFF, time.monotonic_ns(), False
    if isinstance(error, ProgramError):
        return Ending.BROKEN_OFF, error.when, error.when >= 0
    return Ending.BROKEN_OFF, -1, False


def _deaths(error: Exception) -> Iterable[Disturbance]:
    """Yield unintended deaths of node processes that ended a run."""
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


def _read_circumstances(folder: Path, status: str) -> Circumstances:
    """Read the circumstances written when the run was checked; otherwise derive them from its status."""
    path = folder / CHECKS
    if not path.exists():
        return Circumstances(Ending.DONE if status == "done" else Ending.BROKEN_OFF)
    return _read_as(path, _circumstances_from_json)


def _circumstances_from_json(document: Mapping[str, Any]) -> Circumstances:
    entries = document["circumstances"]
    disturbances = tuple(
        Disturbance(entry["kind"], entry["begin_ns"], entry["end_ns"], frozenset(entry["nodes"]), entry["what"])
        for entry in entries["disturbances"]
    )
    settled = entries.get("settled", False)  # missing in older runs' files
    circumstances = Circumstances(
        Ending(entries["ending"]), entries["end_ns"], disturbances, entries["bound_s"], settled=settled
    )
    json_text.check(circumstances.end, int, "end_ns")
    json_text.check(circumstances.bound, float, "bound_s")
    json_text.check(settled, bool, "settled")
    for disturbance in disturbances:
        json_text.check((disturbance.begin, disturbance.end), tuple[int, int], "disturbances")
        json_text.check((disturbance.kind, disturbance.what, *disturbance.nodes), tuple[str, ...], "disturbances")
    return circumstances

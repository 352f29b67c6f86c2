"""The checks of a run: of each repetition, however it ends, and once more from its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from testbed.controller.checkers.disturbances import Disturbance
from testbed.controller.checkers.histories import read_histories
from testbed.controller.checkers.promises import BOUND, Circumstances, Ending, checked
from testbed.controller.checkers.report import Report
from testbed.controller.executing import Execution
from testbed.controller.folders import Part
from testbed.controller.recording import KeptFolder
from testbed.controller.verdicts import verdict_of
from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.observe.recorded import Recorded
from testbed.runtime.journal import UnwritableError
from testbed.runtime.nodes.run import StuckError
from testbed.sim.simulation import StalledError
from testbed.spec.layout_json import from_json

CHECKS = "checks.json"
"""In a repetition's folder: a report, and the circumstances by which it came about."""


@runtime_checkable
class Disturbing(Protocol):
    """What happens beside programs, such as a scenario, and can say how it disturbed them in the repetition that is over."""

    def disturbances(self) -> Iterable[Disturbance]: ...


class Checking:
    """reports: of the repetitions until now."""

    def __init__(
        self, folder: KeptFolder, names: Sequence[str], patience: float | None, beside: Iterable[object]
    ) -> None:
        """folder: the run's, whose result tells what was found. names: of the nodes, by rank. patience: as for `run`.
        beside: of which some may be `Disturbing`."""
        self.reports: list[Report] = []
        self._folder = folder
        self._names = names
        self._patience = patience
        self._beside = [one for one in beside if isinstance(one, Disturbing)]

    @contextmanager
    def of(self, part: Part) -> Iterator[None]:
        """Check the repetition that is carried out in the block."""
        try:
            yield
        except Exception as error:
            with suppress(UnwritableError):  # then what ended it is more worth telling
                self._check(part, *_ending(error))
            raise
        self._check(part, Ending.DONE, -1)

    def joined(self, execution: Execution) -> Execution:
        """With what was found in it."""
        report, verdict = self.reports[-1], execution.verdict
        whole = verdict_of([*verdict.findings, *report.findings()], verdict.notes, verdict.seconds, verdict.slow)
        return replace(execution, verdict=whole, checks=report)

    def _check(self, part: Part, ending: Ending, end: int) -> None:
        disturbances = tuple(one for beside in self._beside for one in beside.disturbances())
        bound = BOUND if self._patience is None or ending is Ending.DONE else min(BOUND, self._patience)
        circumstances = Circumstances(ending, end, disturbances, bound)
        report = checked(read_histories(part.history, self._names), circumstances)
        self.reports.append(report)
        self._folder.say(checks=[_in_short(one) for one in self.reports])
        text = json.dumps({**report.to_json(), "circumstances": _told(circumstances)}, ensure_ascii=False, indent=1)
        try:
            (part.folder / CHECKS).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UnwritableError(f"{part.folder / CHECKS} cannot be written: {reason_of(error)}") from error
        for check in report.checks.values():
            if check.failed:
                row = {"check": check.name, "checked": check.checked, "failed": check.failed}
                part.rows.write({"repeat": part.number, **row} if part.number else row)


def check_again(run: Recorded) -> list[Report]:
    """From a run's folder, each repetition. Raises NotFoundError where no history was written, TestbedError for a broken
    one."""
    folders = _folders(run, "history")
    if not folders:
        raise NotFoundError(f"{run.folder} has no history: 'testbed run --check' and '--history' write one")
    try:
        layout = from_json(json.loads((run.folder / "cluster.json").read_text(encoding="utf-8")))
        names = [node.name for node in layout.nodes]
        return [checked(read_histories(one / "history", names), _remembered(one, run.status)) for one in folders]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise TestbedError(f"{run.folder} cannot be understood: {type(error).__name__}: {error}") from error


def written_reports(run: Recorded) -> list[Report]:
    """Those that were written with the run, of each repetition that was checked. Raises TestbedError for a broken one."""
    try:
        files = [folder / CHECKS for folder in _folders(run, CHECKS)]
        return [Report.from_json(json.loads(file.read_text(encoding="utf-8"))) for file in files]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise TestbedError(f"{run.folder} cannot be understood: {type(error).__name__}: {error}") from error


def _folders(run: Recorded, what: str) -> list[Path]:
    """Of the repetitions that have this."""
    found = sorted((one.parent for one in run.folder.glob(f"repeat-*/{what}")), key=lambda one: int(one.name[7:]))
    return [*found, run.folder] if (run.folder / what).exists() else found


def _ending(error: Exception) -> tuple[Ending, int]:
    """How a run has ended, and when; -1: with the last event."""
    if isinstance(error, StalledError):
        return (Ending.STUCK if error.final else Ending.BROKEN_OFF), error.when
    if isinstance(error, StuckError):
        return Ending.BROKEN_OFF, time.monotonic_ns()
    return Ending.BROKEN_OFF, -1


def _in_short(report: Report) -> Mapping[str, object]:
    return {"passed": report.passed, "failed": list(report.failed), "ambiguous": len(report.ambiguities)}


def _told(circumstances: Circumstances) -> Mapping[str, object]:
    return {
        "ending": circumstances.ending.value,
        "end_ns": circumstances.end,
        "bound_s": circumstances.bound,
        "disturbances": [
            {"kind": one.kind, "begin_ns": one.begin, "end_ns": one.end, "nodes": sorted(one.nodes), "what": one.what}
            for one in circumstances.disturbances
        ],
    }


def _remembered(folder: Path, status: str) -> Circumstances:
    """As they were written when the run was checked; otherwise as its status says."""
    path = folder / CHECKS
    if not path.exists():
        return Circumstances(Ending.DONE if status == "done" else Ending.BROKEN_OFF)
    told: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["circumstances"]
    disturbances = tuple(
        Disturbance(one["kind"], one["begin_ns"], one["end_ns"], frozenset(one["nodes"]), one["what"])
        for one in told["disturbances"]
    )
    return Circumstances(Ending(told["ending"]), told["end_ns"], disturbances, told["bound_s"])

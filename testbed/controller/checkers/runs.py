"""The checks of a run: of each repetition, however it ends, and once more from its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from testbed.controller.checkers.disturbances import Disturbance
from testbed.controller.checkers.histories import histories_of, read_histories
from testbed.controller.checkers.promises import BOUND, Circumstances, Ending, checked
from testbed.controller.checkers.report import Report
from testbed.controller.executing import Execution
from testbed.controller.folders import Part, Recorded
from testbed.controller.recording import KeptFolder
from testbed.controller.verdicts import verdict_of
from testbed.errors import NotFoundError, TestbedError
from testbed.runtime.journal import read
from testbed.runtime.nodes.run import StuckError
from testbed.sim.simulation import StalledError

if TYPE_CHECKING:
    from testbed.spec.layout import Layout

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
        (part.folder / CHECKS).write_text(text + "\n", encoding="utf-8")
        for check in report.checks.values():
            if check.failed:
                row = {"check": check.name, "checked": check.checked, "failed": check.failed}
                part.rows.write({"repeat": part.number, **row} if part.number else row)


def check_again(run: Recorded, layout: Layout) -> list[Report]:
    """From a run's folder, each repetition. Raises NotFoundError where no history was written, TestbedError for a broken
    one."""
    folders = sorted((one.parent for one in run.folder.glob("repeat-*/history")), key=lambda one: int(one.name[7:]))
    if (run.folder / "history").is_dir():
        folders.append(run.folder)
    if not folders:
        raise NotFoundError(f"{run.folder} has no history: 'testbed run --check' and '--history' write one")
    reports = []
    for folder in folders:
        events = {node.name: read(folder / "history" / f"{node.name}.jsonl") for node in layout.nodes}
        try:
            reports.append(checked(histories_of(events), _remembered(folder, run.status)))
        except (KeyError, TypeError, ValueError) as error:
            raise TestbedError(f"{folder / 'history'} is damaged: {type(error).__name__} {error}") from error
    return reports


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

"""Execution of a study: its points run on an engine, in parallel if enough processors are free; failed points are retried.

A simulated run takes one processor. A run in namespaces takes the number of processors that its point or the study sets, or
else the whole machine, since other runs would disturb its times.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, Final

from testbed.controller.engines import Engine, EngineError
from testbed.errors import UnsupportedError
from testbed.studies.point_checks import check_points
from testbed.studies.study_file import Study
from testbed.studies.study_folder import Outcome, StudyFolder
from testbed.studies.study_points import FAILED, compute, format_request, is_live

RETRIES: Final = 1
"""Default number of further attempts of a failed point."""

Progress = Callable[[int, int], object]
"""Progress callback: called with the number of points that have ended, and the number of points."""

_DIED: Final = "its process died"


def run_study(
    study: Study,
    folder: StudyFolder,
    engine: Engine,
    *,
    retries: int = RETRIES,
    progress: Progress = lambda *_: None,
) -> Mapping[int, Outcome]:
    """Run the points that are not done; return the outcomes of all points, by number.

    retries: further attempts, in this call, of a point that failed in namespaces, or whose process died; a simulated run
    would fail again.
    Before the first run, raises DescriptionError if a value of a point is invalid, UnsupportedError if a point needs more
    processors than the engine has, and ConflictError if another process computes the study; later EngineError if the
    engine loses its workers, and UnwritableError. After an error or an interruption, `folder` has the outcomes so far, and
    a later call continues with the remaining points.
    """
    with folder.locked():
        scheduler = _Scheduler(study, folder, engine, retries, progress)
        try:
            scheduler.run()
        finally:
            folder.close()
        folder.finish(study, scheduler.outcomes)
    return scheduler.outcomes


class _Scheduler:
    """Scheduler of a study's points."""

    def __init__(self, study: Study, folder: StudyFolder, engine: Engine, retries: int, progress: Progress) -> None:
        self.outcomes = folder.outcomes()
        self._study = study
        self._folder = folder
        self._engine = engine
        self._progress = progress
        self._free_processors = engine.width
        unfinished = [number for number in range(len(study.points)) if not self._is_done(number)]
        # A point may have failed before the study was continued.
        self._attempts = {
            number: self.outcomes[number].attempt if number in self.outcomes else 0 for number in unfinished
        }
        self._max_attempts = {number: attempts + 1 + retries for number, attempts in self._attempts.items()}
        self._pending = deque(unfinished)
        self._isolated: deque[int] = deque()  # points that may have killed a process: each is run alone
        self._running: dict[Future[str], int] = {}
        check_points(study, unfinished)
        for number in unfinished:
            processors = self._processors_of(number)
            if processors > engine.width:
                raise UnsupportedError(
                    f"point {number} takes {processors} processors, and there are {engine.width} workers"
                )

    def _is_done(self, number: int) -> bool:
        return number in self.outcomes and self.outcomes[number].is_done

    def run(self) -> None:
        """Run until every point has an outcome. An executor in which a process has died is replaced."""
        self._report_progress()
        while self._pending or self._isolated:
            with self._engine.open() as executor:
                self._run_on(executor)

    def _run_on(self, executor: Executor) -> None:
        """Submit points while processors are free, until no point is pending, or until a process dies."""
        while self._pending or self._isolated or self._running:
            self._submit(executor)
            if not self._running:
                return  # the executor's process died while it was idle
            ended = wait(self._running, return_when=FIRST_COMPLETED).done
            cancelled = {future for future in ended if future.cancelled()}
            ended -= cancelled
            broken = {future for future in ended if isinstance(future.exception(), BrokenExecutor)}
            for future in ended - broken:
                number = self._running.pop(future)
                self._free_processors += self._processors_of(number)
                error = future.exception()
                if error is None:
                    self._add_result(number, json.loads(future.result()))
                else:  # an error of the executor: an error of the run is in its result
                    self._add_death(number, f"{type(error).__name__}: {error}".removesuffix(": "))
            if broken:
                self._handle_broken_executor()
                return
            if cancelled:  # by Dask's client, when it loses its scheduler
                raise EngineError("the connection to the scheduler of the workers is lost")

    def _submit(self, executor: Executor) -> None:
        while (number := self._next()) is not None:
            try:
                future = executor.submit(compute, format_request(self._study.points[number], self._study.base))
            except BrokenExecutor:
                self._pending.appendleft(number)
                return
            self._running[future] = number
            self._free_processors -= self._processors_of(number)

    def _next(self) -> int | None:
        """Remove and return the next pending point for which enough processors are free; None if there is none."""
        if self._free_processors < 1:
            return None
        if self._isolated:
            return None if self._running else self._isolated.popleft()
        for number in self._pending:
            if self._processors_of(number) <= self._free_processors:
                self._pending.remove(number)
                return number
        return None

    def _processors_of(self, number: int) -> int:
        """Return the number of processors that a point takes."""
        if not is_live(self._study.points[number]):
            return 1
        return self._study.cores_of(number) or self._engine.width

    def _add_result(self, number: int, result: Mapping[str, Any]) -> None:
        self._attempts[number] += 1
        outcome = Outcome(number, self._attempts[number], **result)
        self.outcomes[number] = outcome
        self._folder.keep(outcome)
        if not outcome.is_done and is_live(self._study.points[number]) and self._may_retry(number):
            self._pending.append(number)
        self._report_progress()

    def _may_retry(self, number: int) -> bool:
        return self._attempts[number] < self._max_attempts[number]

    def _handle_broken_executor(self) -> None:
        """Handle the death of a process, which breaks the executor. If several points were running, it is unknown which has
        caused it, and each is run again alone."""
        running = list(self._running.values())
        self._running.clear()
        self._free_processors = self._engine.width
        if len(running) > 1:
            self._isolated.extend(running)
        else:
            self._add_death(running[0], _DIED)

    def _add_death(self, number: int, error: str) -> None:
        self._attempts[number] += 1
        outcome = Outcome(number, self._attempts[number], FAILED, error, "", 0.0, [])
        self.outcomes[number] = outcome
        self._folder.keep(outcome)
        if self._may_retry(number):
            self._isolated.append(number)
        self._report_progress()

    def _report_progress(self) -> None:
        self._progress(len(self.outcomes), len(self._study.points))

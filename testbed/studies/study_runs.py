"""Execution of a study: its points on an engine, as many at a time as the machine has room for; failed ones again.

A simulated run takes one processor. A run in namespaces takes those that the study says, or the whole machine: others would
disturb its times.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, Final

from testbed.controller.engines import Engine
from testbed.errors import UnsupportedError
from testbed.studies.study_file import Study
from testbed.studies.study_folder import Outcome, StudyFolder
from testbed.studies.study_points import FAILED, compute, is_live, requested

RETRIES: Final = 1
"""Attempts of a failed point after the first, by default."""

Progress = Callable[[int, int], object]
"""Callback of progress: points that have ended, of how many."""

_DIED: Final = "its process died"


def run_study(
    study: Study,
    folder: StudyFolder,
    engine: Engine,
    *,
    retries: int = RETRIES,
    progress: Progress = lambda *_: None,
) -> Mapping[int, Outcome]:
    """Run the points that are not done, and return the outcome of each, by its number.

    retries: further attempts of a point that failed in namespaces, or whose process died; a simulated run would fail alike.
    Raises UnsupportedError where a point needs more processors than the engine has, UnwritableError; then, and when it is
    interrupted, `folder` has all outcomes until that moment, and a later call goes on with the others.
    """
    scheduler = _Scheduler(study, folder, engine, retries, progress)
    try:
        scheduler.run()
    finally:
        folder.close()
    folder.finish(study, scheduler.outcomes)
    return scheduler.outcomes


class _Scheduler:
    """The points that wait, those that run, and their outcomes."""

    def __init__(self, study: Study, folder: StudyFolder, engine: Engine, retries: int, progress: Progress) -> None:
        self.outcomes = folder.outcomes()
        self._study = study
        self._folder = folder
        self._engine = engine
        self._retries = retries
        self._progress = progress
        self._room = engine.width  # processors that no run takes
        missing = [number for number in range(len(study.points)) if not self._is_done(number)]
        self._attempts = dict.fromkeys(missing, 0)
        self._waiting = deque(missing)
        self._suspects: deque[int] = deque()  # points in whose company a process died: each runs alone
        self._running: dict[Future[str], int] = {}
        if study.cores is not None and study.cores > engine.width and any(is_live(one) for one in study.points):
            raise UnsupportedError(f"a run takes {study.cores} processors, and there are {engine.width} workers")

    def _is_done(self, number: int) -> bool:
        return number in self.outcomes and self.outcomes[number].is_done

    def run(self) -> None:
        """Run until every point has its outcome. A new executor takes the place of one in which a process died."""
        self._show()
        while self._waiting or self._suspects:
            with self._engine.open() as executor:
                self._feed(executor)

    def _feed(self, executor: Executor) -> None:
        """Submit points as there is room, until none waits, or until a process dies."""
        while self._waiting or self._suspects or self._running:
            self._submit(executor)
            if not self._running:
                return  # its process died while it had nothing to do
            ended = wait(self._running, return_when=FIRST_COMPLETED).done
            if any(isinstance(future.exception(), BrokenExecutor) for future in ended):
                self._take_broken()
                return
            for future in ended:
                number = self._running.pop(future)
                self._room += self._taken(number)
                if future.exception() is None:
                    self._take(number, json.loads(future.result()))
                else:  # a run's own exceptions are in its result: this one is the executor's
                    self._take_dead(number)

    def _submit(self, executor: Executor) -> None:
        while (number := self._next()) is not None:
            try:
                future = executor.submit(compute, requested(self._study.points[number], self._study.base))
            except BrokenExecutor:
                self._waiting.appendleft(number)
                return
            self._running[future] = number
            self._room -= self._taken(number)

    def _next(self) -> int | None:
        """Take the next point for which there is room; None if there is none. Simulated ones fill the room until those in
        namespaces have it for themselves."""
        if self._room < 1:
            return None
        if self._suspects:
            return None if self._running else self._suspects.popleft()
        for number in self._waiting:
            if self._taken(number) <= self._room:
                self._waiting.remove(number)
                return number
        return None

    def _taken(self, number: int) -> int:
        """Processors that a point takes."""
        if not is_live(self._study.points[number]):
            return 1
        return self._engine.width if self._study.cores is None else self._study.cores

    def _take(self, number: int, found: Mapping[str, Any]) -> None:
        self._attempts[number] += 1
        outcome = Outcome(number, self._attempts[number], **found)
        self.outcomes[number] = outcome
        self._folder.keep(outcome)
        if not outcome.is_done and is_live(self._study.points[number]) and outcome.attempt <= self._retries:
            self._waiting.append(number)
        self._show()

    def _take_broken(self) -> None:
        """A process died, and the executor with it: of several points that ran it is unknown whose it was, and each runs
        again, alone."""
        running = list(self._running.values())
        self._running.clear()
        self._room = self._engine.width
        if len(running) > 1:
            self._suspects.extend(running)
        else:
            self._take_dead(running[0])

    def _take_dead(self, number: int) -> None:
        self._attempts[number] += 1
        outcome = Outcome(number, self._attempts[number], FAILED, _DIED, "", 0.0, [])
        self.outcomes[number] = outcome
        self._folder.keep(outcome)
        if outcome.attempt <= self._retries:
            self._suspects.append(number)
        self._show()

    def _show(self) -> None:
        self._progress(len(self.outcomes), len(self._study.points))

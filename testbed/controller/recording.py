"""A run's folder from the beginning to the end, however that comes."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from testbed.controller.folders import RunFolder
from testbed.controller.surroundings import surroundings
from testbed.controller.verdicts import Verdict
from testbed.controller.whereabouts import Whereabouts
from testbed.errors import TestbedError
from testbed.runtime.journal import UnwritableError


class KeptFolder(RunFolder):
    """One that knows how the run has ended."""

    def __init__(self, path: Path, asked: Mapping[str, object], where: Whereabouts) -> None:
        from testbed.spec.layout_json import to_json

        whole = {**asked, "began": time.time(), "command": shlex.join(sys.argv), "environment": surroundings()}
        super().__init__(path, whole, where.toml, to_json(where.layout))
        self._result: dict[str, object] = {"status": "failed"}

    def say(self, **more: object) -> None:
        """Something that its result tells, whether all goes well or not."""
        self._result |= more

    def done(self, *, verdict: Verdict, **more: object) -> None:
        """All went well."""
        self._result |= {"status": "done", "verdict": verdict_in_words(verdict), **more}

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            status = "failed" if isinstance(error, Exception) else "interrupted"
            said = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
            self._result |= {"status": status, "error": said}
        self.close({**self._result, "ended": time.time()})


@contextlib.contextmanager
def kept(path: Path, asked: Mapping[str, object], where: Whereabouts) -> Iterator[KeptFolder]:
    """A folder that is complete at the end of the block, whatever ends it. Raises ConflictError, UnwritableError."""
    folder = KeptFolder(path, asked, where)
    try:
        yield folder
    except BaseException as error:
        with contextlib.suppress(UnwritableError):  # then what ends the run is more worth telling
            folder.end(error)
        raise
    folder.end()


def verdict_in_words(verdict: Verdict) -> Mapping[str, object]:
    """As JSON has it."""
    findings = [{**asdict(one), "grade": one.grade.value} for one in verdict.findings]
    return {
        "grade": verdict.grade.value,
        "seconds": verdict.seconds,
        "notes": list(verdict.notes),
        "findings": findings,
    }

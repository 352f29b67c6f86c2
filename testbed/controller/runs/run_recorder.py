"""Recording a run in its folder, from its beginning to its end, however it ends."""

from __future__ import annotations

import contextlib
import errno
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from testbed.controller.runs.folders import RunFolder, run_environment
from testbed.controller.runs.run_target import RunTarget
from testbed.controller.verdict.verdicts import Verdict
from testbed.errors import TestbedError, reason_of
from testbed.kernel.processes import identity
from testbed.runtime.journal import UnwritableError
from testbed.spec.layout_json import to_json

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class KeptFolder(RunFolder):
    """A run's folder with the run's status."""

    def __init__(self, path: Path, asked: Mapping[str, object], where: RunTarget) -> None:
        request = {
            **asked,
            "began": time.time(),
            "command": shlex.join(sys.argv),
            "process": str(identity()),  # by which a run in progress is told from one that was killed
            "environment": run_environment(),
        }
        super().__init__(path, request, where.toml, to_json(where.layout))
        self._result: dict[str, object] = {"status": "failed"}

    def say(self, **more: object) -> None:
        """Add entries to the result, whether the run succeeds or not."""
        self._result |= more

    def done(self, *, verdict: Verdict, **more: object) -> None:
        """Record success."""
        self._result |= {"status": "done", "verdict": verdict_to_json(verdict), **more}

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            status = "failed" if isinstance(error, Exception) else "interrupted"
            message = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
            self._result |= {"status": status, "error": message}
        self.close({**self._result, "ended": time.time()})


@contextlib.contextmanager
def open_folder(path: Path, asked: Mapping[str, object], where: RunTarget) -> Iterator[KeptFolder]:
    """Create a folder that is complete at the end of the block, however it ends. Raises ConflictError,
    UnwritableError."""
    folder = KeptFolder(path, asked, where)
    try:
        yield folder
    except BaseException as error:
        with contextlib.suppress(UnwritableError):  # the error that ended the run is raised instead
            folder.end(error)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise UnwritableError(
                f"results cannot be written to {path}: {reason_of(error)}; earlier results are complete"
            ) from error
        raise
    folder.end()


def verdict_to_json(verdict: Verdict) -> Mapping[str, object]:
    """Convert a verdict for JSON."""
    findings = [{**asdict(finding), "grade": finding.grade.value} for finding in verdict.findings]
    return {
        "grade": verdict.grade.value,
        "seconds": verdict.seconds,
        "notes": list(verdict.notes),
        "findings": findings,
    }

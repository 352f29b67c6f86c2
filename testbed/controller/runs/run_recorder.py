"""Recorder of a run: its folder with the request, and the result however the run ends."""

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

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class RunRecorder(RunFolder):
    """Folder of a run that also records the request with its circumstances, and the status."""

    def __init__(self, path: Path, request: Mapping[str, object], target: RunTarget) -> None:
        document = {
            **request,
            "began": time.time(),
            "command": shlex.join(sys.argv),
            "process": str(identity()),  # distinguishes a run in progress from one that was killed
            "environment": run_environment(),
        }
        super().__init__(path, document, target.toml, to_json(target.layout))
        self._result: dict[str, object] = {"status": "failed"}

    def add_result(self, **entries: object) -> None:
        """Add entries to the result, whether the run succeeds or not."""
        self._result |= entries

    def record_success(self, *, verdict: Verdict, **entries: object) -> None:
        """Record success, and add entries to the result."""
        self._result |= {"status": "done", "verdict": verdict_to_json(verdict), **entries}

    def finish(self, error: BaseException | None = None) -> None:
        """Write the result. error: the error that ended the run, if any."""
        if error is not None:
            status = "failed" if isinstance(error, Exception) else "interrupted"
            message = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
            self._result |= {"status": status, "error": message}
        self.close({**self._result, "ended": time.time()})


@contextlib.contextmanager
def record_run(path: Path, request: Mapping[str, object], target: RunTarget) -> Iterator[RunRecorder]:
    """Create a run's folder; write the result at the end of the block, however it ends. Raises ConflictError,
    UnwritableError."""
    recorder = RunRecorder(path, request, target)
    try:
        yield recorder
    except BaseException as error:
        with contextlib.suppress(UnwritableError):  # the error that ended the run is raised instead
            recorder.finish(error)
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            raise UnwritableError(
                f"results cannot be written to {path}: {reason_of(error)}; earlier results are complete"
            ) from error
        raise
    recorder.finish()


def verdict_to_json(verdict: Verdict) -> Mapping[str, object]:
    """Convert a verdict to a JSON object."""
    findings = [{**asdict(finding), "grade": finding.grade.value} for finding in verdict.findings]
    return {
        "grade": verdict.grade.value,
        "seconds": verdict.seconds,
        "notes": list(verdict.notes),
        "findings": findings,
    }

"""Recorded runs, read from their folders; `testbed.controller.runs.folders` writes them and documents their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from testbed.errors import NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.json_text import check, loads
from testbed.kernel.filesystem import read_text
from testbed.runtime.journal import BrokenFileError, read
from testbed.spec.layout import Layout
from testbed.spec.layout_json import from_json

FORMAT: Final = 1
"""Format that this version writes; it also reads older formats."""

FATES: Final = "fates.jsonl"
"""File in the folder of a repetition or of the run: every fate except a pass."""

RUN: Final = "run.json"
CLUSTER: Final = "cluster.json"
RESULT: Final = "result.json"
ROWS: Final = "rows.jsonl"
EVENTS: Final = "events.jsonl"


class RunDocument(TypedDict, total=False):
    """Keys of ``run.json`` that are read."""

    kind: str
    cluster: str
    origin: str
    workload: str
    form: str
    settings: Mapping[str, Any] | None
    protocol: str
    codec: str
    mode: str
    seed: int
    repeat: int
    timeout: float
    patience: float | None
    scenario: str
    dilate: int
    nics: str
    firmware: Mapping[str, Any]
    began: float
    command: str
    process: str
    environment: Mapping[str, Any]


class FindingDocument(TypedDict, total=False):
    """A finding of a verdict."""

    what: str
    link: str
    direction: str
    asked: float | None
    measured: float | None
    unit: str
    grade: str
    reason: str


class VerdictDocument(TypedDict, total=False):
    """The verdict of a run."""

    grade: str
    seconds: float
    notes: list[str]
    findings: list[FindingDocument]


class ChecksDocument(TypedDict, total=False):
    """The results of a checker."""

    passed: bool
    failed: list[str]
    ambiguous: int


class FatesDocument(TypedDict, total=False):
    """Data on the logs of fates."""

    untold: list[str]


class ResultDocument(TypedDict, total=False):
    """Keys of ``result.json`` that are read."""

    status: str
    error: str
    seconds: float
    verdict: VerdictDocument | None
    checks: list[ChecksDocument] | None
    counted: list[Mapping[str, Mapping[str, float]]]
    used: list[Mapping[str, Mapping[str, Mapping[str, float]]]]
    fates: FatesDocument


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run as recorded in its folder. parameters: contents of ``run.json``. result: contents of ``result.json``; empty if
    the run has not ended, or was killed."""

    folder: Path
    parameters: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def status(self) -> str:
        """The result's status; "unfinished" without a result."""
        return str(self.result.get("status", "unfinished"))

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the rows that the run measured. Raises the errors of `testbed.runtime.journal.read`."""
        return read(self.folder / ROWS)

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Yield the run's events. Raises the errors of `testbed.runtime.journal.read`."""
        return read(self.folder / EVENTS)


def read_run(folder: Path) -> RecordedRun:
    """Read a run's folder. Raises NotFoundError if there is no run, UnsupportedError for a run of a newer version,
    BrokenFileError for a damaged file."""
    parameters = _read_versioned(folder / RUN, RunDocument)
    if parameters is None:
        raise NotFoundError(f"{folder} is not a run's folder: it has no {RUN}")
    return RecordedRun(folder, parameters, _read_versioned(folder / RESULT, ResultDocument) or {})


def runs(path: Path) -> tuple[list[RecordedRun], list[str]]:
    """Read the runs in a folder, also those in the folders of series. Return them, the oldest first, and a sentence for each
    unreadable run."""
    readable, unreadable = [], []
    folders = {file.parent for file in path.glob(f"*/{RUN}")}
    in_series = {file.parent for file in path.glob(f"*/*/{RUN}")}
    folders |= {folder for folder in in_series if folder.parent not in folders}
    for folder in sorted(folders):
        try:
            readable.append(read_run(folder))
        except TestbedError as error:
            unreadable.append(str(error))
    return sorted(readable, key=lambda run: float(run.parameters.get("began", 0))), unreadable


def _read_versioned(path: Path, kind: type) -> Mapping[str, Any] | None:
    """Read a document and check its format and keys; None if there is no file. kind: the document's TypedDict."""
    if not path.exists():
        return None
    document = read_document(path)
    version = document.get("format")
    if type(version) is not int:
        raise BrokenFileError(f"{path} is invalid: it is damaged, or not a run's file")
    if version > FORMAT:
        raise UnsupportedError(
            f"{path.parent} was written by a newer version of testbed (format {version}; this version reads up to {FORMAT})"
        )
    try:
        check(document, kind)
    except ValueError as error:
        raise BrokenFileError(f"{path} is invalid ({error}): it is damaged") from error
    return document


def read_document(path: Path) -> Mapping[str, Any]:
    """Read the JSON object in a file of a run's folder. Raises NotFoundError for a missing file, BrokenFileError for a
    damaged or unreadable one."""
    try:
        document = loads(read_text(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise BrokenFileError(f"{path} is invalid ({error}): it is damaged, or not a run's file") from error
    if not isinstance(document, dict):
        raise BrokenFileError(f"{path} is invalid: it is damaged, or not a run's file")
    return document


def read_layout(folder: Path) -> Layout:
    """Read the cluster of a run. Raises the errors of `read_document`."""
    path = folder / CLUSTER
    try:
        return from_json(read_document(path))
    except ValueError as error:
        raise BrokenFileError(f"{path} is invalid ({error}): it is damaged") from error

"""Folder of a study, from which it can be continued after an interruption:

study.json      the study's points, the machine and the versions
points.jsonl    a line for each attempt, written when it has ended: point, attempt, outcome, error, verdict, seconds, rows
rows.jsonl      all rows in the order of the points, with the number and varied parameters of the point; written at the end
rows.parquet    like rows.jsonl, if polars is installed (extra `studies`)
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from testbed.controller.request_folders import begin, resume
from testbed.errors import ConflictError, TestbedError, reason_of
from testbed.runtime.journal import UnbufferedLines, UnwritableError, read, write_atomically
from testbed.studies.designs import Parameters
from testbed.studies.study_file import Study
from testbed.studies.study_points import DONE

ROWS: Final = "rows.jsonl"
TABLE: Final = "rows.parquet"
_STUDY: Final = "study.json"
_POINTS: Final = "points.jsonl"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an attempt of a point. point: number of the point. attempt: number of the attempt, from 1, counted on
    when the study is continued. outcome: done or failed. error: the reason of a failure, or empty. verdict: grade of the
    run; empty if the attempt failed. seconds: duration; 0 if its process died. rows: rows of the run."""

    point: int
    attempt: int
    outcome: str
    error: str
    verdict: str
    seconds: float
    rows: list[Mapping[str, Any]]

    @property
    def is_done(self) -> bool:
        return self.outcome == DONE


class StudyFolder:
    """Reader and writer of a study's folder."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._lines = UnbufferedLines(path / _POINTS)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for the block, so that no other process computes its points. Raises ConflictError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(f"another process computes the points of {self.path}: wait until it ends") from None
            yield
        finally:
            os.close(descriptor)

    def keep(self, outcome: Outcome) -> None:
        """Append the result of an attempt. Raises UnwritableError; then earlier results are still complete."""
        self._lines.write(asdict(outcome))

    def outcomes(self) -> dict[int, Outcome]:
        """Read the last outcome of each point, by number. An incomplete last line, left by a killed process, is ignored.
        Raises TestbedError for other damage."""
        try:
            return {line["point"]: Outcome(**line) for line in read(self.path / _POINTS)}
        except (KeyError, TypeError) as error:
            raise TestbedError(f"{self.path / _POINTS} is damaged: {error}") from error

    def close(self) -> None:
        self._lines.close()

    def finish(self, study: Study, outcomes: Mapping[int, Outcome]) -> None:
        """Write the rows of all points in their order. Raises UnwritableError."""
        rows = list(labelled_rows(study, outcomes))
        write_atomically(
            self.path / ROWS, "".join(json.dumps(row, default=repr, ensure_ascii=False) + "\n" for row in rows)
        )
        _write_table(rows, self.path / TABLE)


def labelled_rows(study: Study, outcomes: Mapping[int, Outcome]) -> Iterator[Mapping[str, Any]]:
    """Yield all rows in the order of the points, each with its point's number and varied parameters."""
    for number, parameters in enumerate(study.points):
        outcome = outcomes.get(number)
        if outcome is None:
            continue
        labels = {"point": number, **varied_values(study, parameters)}
        for row in outcome.rows:
            yield {**labels, **{(f"row.{key}" if key in labels else key): value for key, value in row.items()}}


def varied_values(study: Study, parameters: Parameters) -> dict[str, object]:
    """Return the values of the varied parameters of a point; None for an absent parameter."""
    return {name: parameters.get(name) for name in study.varied}


def new_folder(path: Path, study: Study) -> StudyFolder:
    """Create the folder of a study. Raises ConflictError if it is not empty, UnwritableError."""
    begin(path / _STUDY, "a study", {"study": {**asdict(study), "base": str(study.base)}})
    return StudyFolder(path)


def open_folder(path: Path) -> tuple[StudyFolder, Study]:
    """Open the folder of a study to continue it. Raises NotFoundError if it does not exist, UnsupportedError for a folder of
    a newer version, TestbedError for a damaged folder."""
    request = resume(path / _STUDY, "a study")
    try:
        document = request["study"]
        study = Study(
            document["name"],
            tuple(document["points"]),
            tuple(document["varied"]),
            Path(document["base"]),
            document["cores"],
        )
    except (KeyError, TypeError) as error:
        raise TestbedError(f"{path / _STUDY} is damaged: {error}") from error
    return StudyFolder(path), study


def _write_table(rows: list[Mapping[str, Any]], path: Path) -> None:
    """Write the rows as Parquet, if polars is installed. Values that are neither numbers nor text are written as JSON."""
    try:
        import polars
    except ImportError:
        return
    flat_rows = [
        {key: value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=repr)
         for key, value in row.items()}
        for row in rows
    ]  # fmt: skip
    try:
        polars.DataFrame(flat_rows, infer_schema_length=None, strict=False).write_parquet(path)
    except OSError as error:
        raise UnwritableError(f"{path} cannot be written: {reason_of(error)}") from error

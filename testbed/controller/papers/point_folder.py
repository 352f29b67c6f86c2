"""Folder of a reproduction, which can be continued:

    reproduction.json   the request: systems, mode, factor, profile, runs; the machine and the versions
    emp/latency.json    a point that is done: the request of its run, its rows, how late its frames were

Files are written atomically, each when its point is done. A point counts as done if its file has the same request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from testbed.controller.papers.paper_points import Measured, Point
from testbed.controller.runs.folders import run_environment
from testbed.errors import ConflictError, NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.runtime.journal import UnwritableError, write_atomically

_REQUEST: Final = "reproduction.json"
_FORMAT: Final = 1
_ASKED: Final = ("systems", "mode", "dilate", "profile", "runs")


class PointFolder:
    """A reproduction's folder. asked: its request."""

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path: Final = path
        self.asked: Final = asked

    def done(self, point: Point) -> Measured | None:
        """Return the result of a point that is done; None for one that is not, or has another request."""
        document = _document(self._file(point))
        if document is None:
            return None
        if not {"asked", "rows", "late", "seconds"} <= document.keys():
            raise TestbedError(f"{self._file(point)} is damaged: it has no rows")
        if document["asked"] != json.loads(json.dumps(point.asked(), default=repr)):
            return None
        return Measured(document["rows"], document["late"], document["seconds"])

    def keep(self, point: Point, measured: Measured) -> None:
        """Write the result of a point. Raises UnwritableError."""
        file = self._file(point)
        _make(file.parent)
        _write(file, {"asked": point.asked(), **asdict(measured)})

    def _file(self, point: Point) -> Path:
        return self.path / point.system / f"{point.name}.json"


def new_folder(path: Path, asked: Mapping[str, Any]) -> PointFolder:
    """Begin a folder. Raises ConflictError where it is not empty, UnwritableError."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConflictError(f"{path} is there already, and not empty; --continue goes on with a reproduction")
    _make(path)
    _write(path / _REQUEST, {"format": _FORMAT, **asked, "environment": run_environment()})
    return PointFolder(path, asked)


def open_folder(path: Path) -> PointFolder:
    """Open a folder to continue it. Raises NotFoundError where there is none, UnsupportedError for one of a newer version,
    TestbedError for a damaged one."""
    asked = _document(path / _REQUEST)
    if asked is None:
        raise NotFoundError(f"{path} is not the folder of a reproduction: it has no {_REQUEST}")
    if not isinstance(asked.get("format"), int) or asked["format"] > _FORMAT:
        raise UnsupportedError(f"{path} is of another version of testbed (format {asked.get('format')!r})")
    if missing := [key for key in _ASKED if key not in asked]:
        raise TestbedError(f"{path / _REQUEST} is damaged: it has no {missing[0]}")
    return PointFolder(path, asked)


def _document(file: Path) -> dict[str, Any] | None:
    """Read a file; None if there is none. Raises TestbedError for a damaged one."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TestbedError(f"{file} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise TestbedError(f"{file} is damaged: {error}") from error
    if not isinstance(document, dict):
        raise TestbedError(f"{file} is damaged: it is not a JSON object")
    return document


def _write(file: Path, document: Mapping[str, object]) -> None:
    write_atomically(file, json.dumps(document, default=repr, ensure_ascii=False, indent=1) + "\n")


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableError(f"results cannot be written to {path}: {reason_of(error)}") from error

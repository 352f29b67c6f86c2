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
from testbed.controller.request_folders import begin, make_folder, read_document, resume, write_document
from testbed.errors import TestbedError

_REQUEST: Final = "reproduction.json"
_ASKED: Final = ("systems", "mode", "dilate", "profile", "runs")


class PointFolder:
    """A reproduction's folder. asked: its request."""

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path: Final = path
        self.asked: Final = asked

    def done(self, point: Point) -> Measured | None:
        """Return the result of a point that is done; None for one that is not, or has another request."""
        document = read_document(self._file(point))
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
        make_folder(file.parent)
        write_document(file, {"asked": point.asked(), **asdict(measured)})

    def _file(self, point: Point) -> Path:
        return self.path / point.system / f"{point.name}.json"


def new_folder(path: Path, asked: Mapping[str, Any]) -> PointFolder:
    """Begin a folder. Raises ConflictError where it is not empty, UnwritableError."""
    begin(path / _REQUEST, "a reproduction", asked)
    return PointFolder(path, asked)


def open_folder(path: Path) -> PointFolder:
    """Open a folder to continue it. Raises NotFoundError where there is none, UnsupportedError for one of a newer version,
    TestbedError for a damaged one."""
    return PointFolder(path, resume(path / _REQUEST, "a reproduction", _ASKED))

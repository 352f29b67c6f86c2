"""Folder of a reproduction, which can be continued:

    reproduction.json   request: systems, mode, factor, profile, runs; machine and versions
    emp/latency.json    a completed point: its request, rows and lateness of frames

Files are written atomically. A point is complete if its file has the point's request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from testbed.controller.papers.paper_points import Point, PointResult
from testbed.controller.request_folders import begin, make_folder, read_document, resume, write_document
from testbed.errors import TestbedError

_REQUEST: Final = "reproduction.json"
_REQUEST_KEYS: Final = ("systems", "mode", "dilate", "profile", "runs")


class PointFolder:
    """Folder of a reproduction. request: request of the reproduction."""

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self.path: Final = path
        self.request: Final = request

    def read(self, point: Point) -> PointResult | None:
        """Return the result of a completed point; None if its file is missing or has another request. Raises TestbedError
        for a damaged file."""
        document = read_document(self._file(point))
        if document is None:
            return None
        if not {"asked", "rows", "late", "seconds"} <= document.keys():
            raise TestbedError(f"{self._file(point)} is damaged: a key is missing")
        if document["asked"] != json.loads(json.dumps(point.request(), default=repr)):
            return None
        return PointResult(document["rows"], document["late"], document["seconds"])

    def write(self, point: Point, result: PointResult) -> None:
        """Write the result of a point. Raises UnwritableError."""
        file = self._file(point)
        make_folder(file.parent)
        write_document(file, {"asked": point.request(), **asdict(result)})

    def _file(self, point: Point) -> Path:
        return self.path / point.system / f"{point.name}.json"


def new_folder(path: Path, request: Mapping[str, Any]) -> PointFolder:
    """Create a folder. Raises ConflictError if it is not empty, UnwritableError."""
    begin(path / _REQUEST, "a reproduction", request)
    return PointFolder(path, request)


def open_folder(path: Path) -> PointFolder:
    """Open a folder to continue it. Raises NotFoundError if the request is missing, UnsupportedError for a newer format,
    TestbedError for a damaged file."""
    return PointFolder(path, resume(path / _REQUEST, "a reproduction", _REQUEST_KEYS))

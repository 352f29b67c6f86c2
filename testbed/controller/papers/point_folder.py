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
from typing import Any, Final, Literal, TypedDict

from testbed.controller.papers.paper_points import Point, PointResult
from testbed.controller.request_folders import (
    begin,
    check_document,
    make_folder,
    read_document,
    resume,
    write_document,
)
from testbed.errors import TestbedError

_REQUEST: Final = "reproduction.json"


class _Request(TypedDict):
    """Request of a reproduction. profile: values of a profile; empty: the papers' own."""

    systems: list[str]
    mode: Literal["sim", "dilated"]
    dilate: int | None
    profile: Literal[""] | Mapping[str, object]
    runs: list[str]


class _PointDocument(TypedDict):
    """A completed point. asked: its request."""

    asked: object
    rows: list[Mapping[str, object]]
    late: int
    seconds: float


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
        check_document(self._file(point), document, _PointDocument)
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
    request = resume(path / _REQUEST, "a reproduction")
    check_document(path / _REQUEST, request, _Request)
    if not request["systems"]:
        raise TestbedError(f"{path / _REQUEST} is damaged: it has no system")
    if request["dilate"] is not None and (request["dilate"] < 1 or request["mode"] != "dilated"):
        raise TestbedError(f"{path / _REQUEST} is damaged: dilate {request['dilate']} in mode {request['mode']}")
    return PointFolder(path, request)

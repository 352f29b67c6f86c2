"""Folder of a reproduction: a stored point is complete if its request is unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from protocols.core.profile import IDEAL
from testbed.controller.papers.paper_points import Point, PointResult
from testbed.controller.papers.point_folder import PointFolder, new_folder, open_folder
from testbed.errors import ConflictError, NotFoundError, TestbedError, UnsupportedError
from testbed.observe.papers import PaperRun
from testbed.runtime.journal import UnwritableError

RUN = PaperRun("pingpong", settings={"sizes": "4", "count": 3}, cores=(1, 0))
POINT = Point("emp", "latency", RUN, "emp-2001", IDEAL, "sim", None)
REQUEST = {"systems": ["emp"], "mode": "sim", "dilate": None, "profile": "", "runs": []}
MEASURED = PointResult([{"size_bytes": 4, "p50_ns": 23_000.5}], 0, 1.25)


@pytest.fixture
def folder(tmp_path: Path) -> PointFolder:
    return new_folder(tmp_path / "papers", REQUEST)


def test_a_complete_point_is_read_back_also_from_the_reopened_folder(folder: PointFolder) -> None:
    assert folder.read(POINT) is None
    folder.write(POINT, MEASURED)
    assert folder.read(POINT) == MEASURED
    reopened = open_folder(folder.path)
    assert reopened.request["systems"] == ["emp"]
    assert reopened.read(POINT) == MEASURED


@pytest.mark.parametrize(
    "other_point",
    [
        replace(POINT, run=replace(RUN, settings={"sizes": "8", "count": 3})),
        replace(POINT, run=replace(RUN, cores=(0, 1))),
        replace(POINT, profile=replace(IDEAL, post=1)),
        replace(POINT, mode="dilated"),
        replace(POINT, mode="dilated", dilate=500),
        replace(POINT, cluster="star-2"),
        replace(POINT, name="bandwidth"),
        replace(POINT, system="am2"),
    ],
    ids=["setting", "cores", "profile", "mode", "factor", "cluster", "run", "system"],
)
def test_a_point_with_another_request_is_not_complete(folder: PointFolder, other_point: Point) -> None:
    folder.write(POINT, MEASURED)
    assert folder.read(other_point) is None


def test_a_folder_with_content_is_not_reused(folder: PointFolder) -> None:
    with pytest.raises(ConflictError, match="--continue continues a reproduction"):
        new_folder(folder.path, {})


def test_a_missing_damaged_or_incompatible_folder_is_rejected(folder: PointFolder, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", folder.path / "reproduction.json"):
        with pytest.raises(NotFoundError, match="is not the folder of a reproduction"):
            open_folder(path)
    request = folder.path / "reproduction.json"
    request.write_text('{"format": 2}')
    with pytest.raises(UnsupportedError, match="written by a newer testbed"):
        open_folder(folder.path)
    for text in ('{"format": 1', "[]", '{"format": 1, "systems": ["emp"]}'):
        request.write_text(text)
        with pytest.raises(TestbedError, match="is damaged"):
            open_folder(folder.path)


def test_a_damaged_point_is_an_error_not_a_result(folder: PointFolder) -> None:
    folder.write(POINT, MEASURED)
    file = folder.path / "emp" / "latency.json"
    document = json.loads(file.read_text())
    damaged = ({"rows": None}, {"rows": [5]}, {"late": []}, {"seconds": "1"})
    for text in (file.read_text()[:-20], '{"asked": {}}', *[json.dumps({**document, **part}) for part in damaged]):
        file.write_text(text)
        with pytest.raises(TestbedError, match=r"latency\.json is damaged"):
            folder.read(POINT)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableError, match="results cannot be written"):
        new_folder(tmp_path / "file" / "papers", {})

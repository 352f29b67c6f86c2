"""Runs and studies whose results go to a full disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from testbed.kernel import syscalls
from testbed.kernel.userns import is_root
from testbed.studies.study_file import load
from testbed.studies.study_points import compute, format_request
from tests.live.file_damage import run_command

pytestmark = pytest.mark.skipif(
    not is_root(), reason="mounts a small file system, in the sandbox's own mount namespace"
)

STUDY = f"""
[run]
cluster = "star-2"
workload = "pingpong"
mode = "sim"
settings = {{ count = 1, sizes = "{",".join(map(str, range(60)))}" }}
[grid]
seed = [1, 2, 3, 4]
"""
"""Points of several kilobytes."""
SIZE, STUDY_OVERHEAD = 4 * 2**20, 2 * 4096
"""Bytes of the small file system, and of a study's files before its first point."""


@pytest.mark.parametrize("option", ["--capture", "--history", "--check"])
def test_a_simulation_reports_that_its_results_cannot_be_written(option: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    syscalls.mount("small", str(small), "tmpfs", 0, "size=64k")
    try:
        result = run_command("run", "star-4", "random", "--mode", "sim", option, "--output", str(small / "run"))
        assert (result.code, result.is_clean_exit) == (1, True), result
        assert f"results cannot be written to {small}" in result.text
        assert "understood" not in result.text
    finally:
        syscalls.umount(str(small))
    assert os.listdir(small) == []


def test_a_study_keeps_its_points_and_continues_after_space_was_freed(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    study = load(tmp_path / "study.toml")
    results = [compute(format_request(point, study.base)) for point in study.points]
    small = tmp_path / "small"
    small.mkdir()
    syscalls.mount("small", str(small), "tmpfs", 0, f"size={SIZE}")
    try:
        (small / "filler").write_bytes(bytes(SIZE - STUDY_OVERHEAD - sum(map(len, results)) // 2))
        full = run_command("study", str(tmp_path / "study.toml"), "--workers", "1", "--output", str(small / "out"))
        assert (full.code, full.is_clean_exit) == (1, True), full
        assert "points.jsonl cannot be written: No space left on device" in full.text
        assert f"'testbed study --continue {small}/out' continues it" in full.text
        points_before = complete_lines(small / "out" / "points.jsonl")
        assert 0 < len(points_before) < len(results)
        again = run_command("study", "--continue", str(small / "out"), "--workers", "1")
        assert (again.code, again.is_clean_exit) == (1, True), again
        assert complete_lines(small / "out" / "points.jsonl") == points_before
        (small / "filler").unlink()
        done = run_command("study", "--continue", str(small / "out"), "--workers", "1")
        assert done.code == 0, done
        lines = complete_lines(small / "out" / "points.jsonl")
        assert lines[: len(points_before)] == points_before
        assert sorted(json.loads(line)["point"] for line in lines) == list(range(len(results)))
        rows = [json.loads(line) for line in (small / "out" / "rows.jsonl").read_bytes().splitlines()]
        assert rows == [
            {"point": number, "seed": point["seed"], **row}
            for number, (point, result) in enumerate(zip(study.points, results, strict=True))
            for row in json.loads(result)["rows"]
        ]
    finally:
        syscalls.umount(str(small))


def complete_lines(file: Path) -> list[bytes]:
    """Return the lines that were written completely."""
    return [line for line in file.read_bytes().splitlines() if line.endswith(b"}")]

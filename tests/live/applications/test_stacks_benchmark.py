"""ci/bench stacks runs from end to end and leaves nothing behind. Its results depend on the machine and are not tested."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "ci" / "bench"

pytestmark = [
    pytest.mark.requires("root", "ssh", "sshd", "mpirun", "mpi4py", "mpicc", "compiler"),
    pytest.mark.usefixtures("machine"),
]


def test_both_stacks_are_measured_with_short_settings(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    command = [BENCH, "stacks", "--repeat", "1", "--count", "5", "--sizes", "1,20000", "--output", output]
    command += ["--runs", tmp_path / "runs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    actual = {(row["contender"].partition(",")[0], row["settings"]["size_bytes"]) for row in rows}
    stacks = ("Open MPI on TCP", "testbed's MPI on EMP", "testbed's MPI on TCP")
    assert actual == {(stack, size) for stack in stacks for size in (1, 20000)}
    assert {row["settings"]["waiting"] for row in rows} == {"spinning", "sleeping"}
    assert all(
        set(row["settings"]["turns"][0]) >= {"size_bytes", "count", "min_ns", "p50_ns", "cpu_ns"} for row in rows
    )
    run_folders = sorted((tmp_path / "runs").iterdir())
    assert (
        len({json.loads((folder / "run.json").read_text())["protocol"] for folder in run_folders})
        == len(run_folders)
        == 5
    )
    rows_of_runs = [
        [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()] for folder in run_folders
    ]
    assert all(
        [(row["node"], row["size_bytes"]) for row in rows] == [("n1", 1), ("n1", 20000)] for rows in rows_of_runs
    )

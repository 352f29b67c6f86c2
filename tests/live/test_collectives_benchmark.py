"""ci/bench collectives runs end to end and leaves nothing behind; a barrier takes log2(ranks) rounds in the simulation.
Its other results depend on the machine and are not tested."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.requires("root", "mpicc", "mpirun"), pytest.mark.usefixtures("machine")]

BENCH = Path(__file__).parents[2] / "ci" / "bench"


def test_collective_calls_are_measured_with_short_settings(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    short = ["--repeat", "1", "--count", "2", "--sizes", "8,4096", "--ranks", "2", "--simulated-ranks", "16"]
    volume = ["--volume", str(16 * 16 * 4096 - 1), "--output", str(output)]
    done = subprocess.run(
        [str(BENCH), "collectives", *short, *volume], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    actual = {
        (row["contender"], row["measure"], row["settings"]["size_bytes"])
        for row in rows
        if row["subject"] == "real frames"
    }
    contenders = {"EMP", "VIA", "Open-MX", "AM-II", "TCP", "Open MPI on TCP"}
    assert actual == {
        (contender, call, size) for contender in contenders for call in ("Allreduce", "Alltoall") for size in (8, 4096)
    }
    simulated = {(row["measure"], row["settings"]["size_bytes"]) for row in rows if row["subject"] == "simulation"}
    assert simulated == {("Allreduce", 8), ("Allreduce", 4096), ("Alltoall", 8), ("Alltoall", 4096)}
    assert {row["hosts"] for row in rows if row["subject"] == "Barrier"} == {2, 4, 8, 16}
    target_rows = [row for row in rows if row["subject"] == "target"]
    assert target_rows
    assert all(row["reached"] for row in target_rows)

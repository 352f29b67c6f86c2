"""ci/bench via runs from end to end and leaves nothing behind; no numbered message is lost, duplicated or reordered
at 1 % frame loss. Its other results depend on the machine and are not tested."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.requires("root", "two-cpus"), pytest.mark.usefixtures("machine")]

BENCH = Path(__file__).parents[2] / "ci" / "bench"
NUMBERED = 5_000


def test_via_is_measured_with_short_settings(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    short = ["--repeat", "1", "--count", "40", "--messages", "2", "--numbered", str(NUMBERED)]
    command = [str(BENCH), "via", *short, "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {row["subject"] for row in rows} == {"round trips", "stream", "simulation", "numbered", "target"}
    assert {row["contender"] for row in rows if row["subject"] == "round trips"} == {"EMP", "MPI on EMP", "MPI on VIA"}
    numbered = {row["measure"]: row["median"] for row in rows if row["subject"] == "numbered"}
    assert numbered["sent"] == NUMBERED
    assert numbered["lost, twice or out of order"] == 0
    assert numbered["frames sent again"] > 0
    assert all(row["measured"] is not None for row in rows if row["subject"] == "target")

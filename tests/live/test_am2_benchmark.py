"""ci/bench am2 runs from end to end and leaves nothing behind. Its results depend on the machine and are not tested."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.requires("root", "two-cpus"), pytest.mark.usefixtures("machine")]

BENCH = Path(__file__).parents[2] / "ci" / "bench"


@pytest.mark.requires("compiler")
def test_am2_is_measured_with_short_settings(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    short = ["--repeat", "1", "--count", "40", "--messages", "2", "--seconds", "0.1", "--requests", "400"]
    command = [BENCH, "am2", *short, "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {row["subject"] for row in rows} == {"round trips", "crossbar", "rate", "bulk", "requests", "target"}
    assert {row["contender"] for row in rows if row["subject"] == "round trips"} == {
        "AM-II, inline", "EMP, inline", "kernel TCP, C",
    }  # fmt: skip
    assert all(row["samples"] and row["environment"]["kernel"] for row in rows if row["subject"] != "target")
    request_counts = {row["measure"]: row["median"] for row in rows if row["subject"] == "requests"}
    assert request_counts["sent"] >= 400
    assert request_counts["handled twice, lost, or ended otherwise"] == 0
    assert all(row["measured"] is not None for row in rows if row["subject"] == "target")

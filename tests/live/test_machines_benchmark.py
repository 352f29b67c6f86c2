"""ci/bench machines runs from end to end and leaves nothing behind; no test depends on its figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd", "two-cpus", "compiler")]

BENCH = Path(__file__).parents[2] / "ci" / "bench"


@pytest.mark.usefixtures("machine")
def test_machines_are_measured_with_short_settings(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    short = ("--nodes", "12", "--repeat", "1", "--turns", "1", "--count", "100", "--seconds", "0.2")
    command = [BENCH, "machines", *short, "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {row["subject"] for row in rows} == {
        "star", "three racks", "messages", "link between machines", "target",
    }  # fmt: skip
    assert all(row["samples"] and row["environment"]["kernel"] for row in rows if row["subject"] != "target")
    assert all(row["measured"] is not None for row in rows if row["subject"] == "target")

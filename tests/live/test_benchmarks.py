"""ci/bench runs from end to end and leaves nothing behind. Its results depend on the machine and are not tested."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.requires("root", "two-cpus"), pytest.mark.usefixtures("machine")]

BENCH = Path(__file__).parents[2] / "ci" / "bench"


@pytest.mark.requires("compiler")
def test_links_are_measured_with_short_settings(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    subjects = "throughput,lateness,inject"
    command = [BENCH, "links", "--repeat", "1", "--seconds", "0.05", "--sizes", "2", "--subjects", subjects]
    done = subprocess.run([*command, "--output", output], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {row["benchmark"] for row in rows} == {"links"}
    assert {*subjects.split(","), "target"} <= {row["subject"] for row in rows}
    assert all(row["samples"] and row["environment"]["kernel"] for row in rows if row["subject"] != "target")


def test_an_unknown_subject_is_reported(tmp_path: Path) -> None:
    command = [BENCH, "links", "--subjects", "links,weather", "--output", tmp_path / "rows.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "weather" in done.stderr

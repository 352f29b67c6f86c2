"""ci/bench shared runs from end to end and leaves nothing behind. Its results depend on the machine and are not tested,
except that nothing is lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.alone, pytest.mark.requires("root", "two-cpus"), pytest.mark.usefixtures("machine")]

BENCH = Path(__file__).parents[2] / "ci" / "bench"


@pytest.mark.requires("compiler")
def test_shared_nics_are_measured_with_short_settings(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    command = [
        BENCH,
        "shared",
        "--repeat",
        "1",
        "--count",
        "40",
        "--hosts",
        "5",
        "--seconds",
        "0.3",
        "--messages",
        "400",
    ]
    command += ["--every", "0.2", "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {row["subject"] for row in rows} == {"alone", "spinning", "blocking", "hosts", "fair", "torture", "target"}
    actual = {row["measure"]: row["samples"] for row in rows if row["subject"] in ("torture", "fair")}
    assert actual["lost, duplicated or out of order"] == [0.0]
    assert actual["host processes killed"][0] >= 1
    assert actual["Jain's index"][0] > 0.5

"""1,024 nodes of a fat tree with 1 % loss on every link, each of which sends 100 messages of 1 kB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA_AND_ANSWERS = 2 * 1_024 * 100


def test_each_message_comes_once(record_property: pytest.RecordProperty) -> None:
    command = [sys.executable, "-m", "tests.sim.thousand_node_memory"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "ci")])}
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    said = json.loads(answer.stdout)
    record_property(
        "note",
        f"1,024 nodes: {said['frames']:,.0f} frames, {said['taken']:.1f} s, {said['memory'] / 1e6:.0f} MB at most",
    )
    assert said["nodes"] == 1_024
    assert said["frames"] > 1.05 * DATA_AND_ANSWERS, "some were lost, and sent again"
    assert said["memory"] < 400_000_000
    assert said["taken"] < 200, "an order of magnitude above what a quiet machine takes"

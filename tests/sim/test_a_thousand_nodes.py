"""1,024 nodes of a fat tree with 1 % loss on every link, each of which sends 100 messages of 1 kB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA_AND_ACKS = 2 * 1_024 * 100


def test_every_message_arrives_once_in_bounded_time_and_memory(record_property: pytest.RecordProperty) -> None:
    command = [sys.executable, "-m", "tests.sim.thousand_node_memory"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "ci")])}
    completed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    document = json.loads(completed.stdout)
    record_property(
        "note",
        f"1,024 nodes: {document['frames']:,.0f} frames, {document['seconds']:.1f} s, {document['memory'] / 1e6:.0f} MB at "
        "most",
    )
    assert document["nodes"] == 1_024
    assert document["frames"] > 1.05 * DATA_AND_ACKS, "no frame was lost and resent"
    assert document["memory"] < 400_000_000
    assert document["seconds"] < 200, "ten times the duration on an idle machine"

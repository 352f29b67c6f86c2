"""Results contain the counters of Myrinet's switches, as of mappers' probes to ports without a cable."""

from __future__ import annotations

import json
from pathlib import Path

import testbed
from testbed import Cluster
from testbed.spec.elements import Link, Node, Switch


def test_the_result_counts_frames_that_switches_did_not_forward(tmp_path: Path) -> None:
    pair = Cluster(
        name="pair",
        nodes=[Node(name="n1"), Node(name="n2")],
        switches=[Switch(name="s1", kind="myrinet")],
        links=[Link(ends=["n1", "s1:1"]), Link(ends=["n2", "s1:2"])],
    )
    result = testbed.run(
        pair, "pingpong", protocol="am2", mode="sim", settings={"sizes": "4", "count": 1}, output=tmp_path / "run"
    )
    (switches,) = [repetition.switches for repetition in result.repetitions]
    assert switches["s1"]["no_cable"] > 0
    assert switches["s1"]["truncated"] == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["switches"] == [switches]

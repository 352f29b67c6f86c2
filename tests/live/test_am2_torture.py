"""Torture test of AM-II: four nodes of twelve endpoints over seven endpoint frames, 5 % loss, a killed node, a flapping
link.

Every message is handled exactly once or returned, and no other node is disturbed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Crash, Flap, Impair
from tests.live.am2_torture import Torture, assert_exactly_once

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 90.0  # seconds
LOSS_CRASH_FLAPS = Scenario(
    name="storm",
    faults=(
        Impair(on="all", at="100ms", loss="5%"),
        Crash(on="n4", at="1s"),
        Flap(on="n3", at="1300ms", for_="300ms"),
        Flap(on="n3", at="2s", for_="300ms"),
    ),
)
FIRMWARE = {"retries": 25}  # 3.5 s
DURATION = 6_000_000_000  # ns: the killed node is known to be dead before the end
LONG_NETWORKS = [Cluster.ring(4, kind="myrinet")] if os.environ.get("TESTBED_LONG") else []
"""CI covers Myrinet in `test_am2_shared`."""
NAMES = ("n1", "n2", "n3", "n4")


@pytest.mark.parametrize("description", [Cluster.star(4), *LONG_NETWORKS], ids=lambda description: description.name)
def test_a_killed_node_and_a_flapping_link_do_not_affect_other_nodes(description: Cluster, tmp_path: Path) -> None:
    result = testbed.run(
        description, Torture(over=DURATION), protocol="am2", scenario=LOSS_CRASH_FLAPS, firmware=FIRMWARE, timeout=TIMEOUT,
        output=tmp_path / "run",
    )  # fmt: skip
    results: dict[int, Any] = {rank: result.results[name] for rank, name in enumerate(NAMES[:3])}
    assert_exactly_once(results)
    for reported in results.values():
        assert reported["wrong"] == 0
        assert reported["returned"]
        assert {tuple(entry) for entry in reported["returned"]} == {(3, "UNREACHABLE")}
        assert reported["since"]
        assert reported["faults"] > 12

"""NPB kernels on real frames, with their verification, over TCP and NICs with firmware, also with several ranks per node."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.spec.model import Description

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

PAIRS = """
name = "pairs"
[[node]]
name = "a"
ranks = [0, 0]
[[node]]
name = "b"
ranks = [0, 0]
[[link]]
ends = ["a", "b"]
"""


@pytest.mark.parametrize(("protocol", "problem"), [("tcp", "W"), ("emp", "W"), ("am2", "S"), ("via", "S")])
def test_the_is_kernel_passes_its_verification(protocol: str, problem: str, tmp_path: Path) -> None:
    settings = {"kernel": "is", "problem": problem}
    result = testbed.run(
        Cluster.star(4), "nas", protocol=protocol, settings=settings, output=tmp_path / "run", timeout=60
    )
    (row,) = result.rows
    assert (row["ranks"], row["verified"], row["problem"]) == (4, True, problem)
    assert row["mops"] > 0


def test_several_ranks_per_node_run_a_kernel(tmp_path: Path) -> None:
    description = Description.from_toml(PAIRS)
    (row,) = testbed.run(description, "nas", protocol="emp", settings={"kernel": "mg"}, output=tmp_path / "run").rows
    assert (row["kernel"], row["ranks"], row["verified"]) == ("mg", 4, True)

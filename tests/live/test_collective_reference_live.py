"""Random collective calls compared with NumPy in one process, in namespaces, with loss on every link."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from tests.sim.collective_reference import compare

pytestmark = pytest.mark.requires("root")


@pytest.mark.parametrize("protocol", ["emp", "am2", "via", "openmx", "tcp"])
def test_every_result_equals_numpys(tmp_path: Path, protocol: str) -> None:
    result = testbed.run(
        Cluster.star(4, loss="1%"),
        compare,
        protocol=protocol,
        mode="live",
        seed=11,
        output=tmp_path / "run",
        timeout=60.0,
    )
    assert result.results == {f"n{rank + 1}": 20 for rank in range(4)}

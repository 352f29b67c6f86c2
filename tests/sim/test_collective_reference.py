"""Results of random collective calls compared with NumPy's, in the simulation with loss and checked histories. With
TESTBED_LONG=1 there are more calls, with a random seed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, Grade
from tests.sim.collective_reference import compare

RANKS = 6
LONG = bool(os.environ.get("TESTBED_LONG"))
SEED = random.SystemRandom().randrange(1 << 30) if LONG else 11
RESENT = {
    "emp": "collections_resent",
    "am2": "packets_resent",
    "via": "frames_resent",
    "ssam": "resent",
    "openmx": "resent",
}


@pytest.mark.parametrize("seed", [SEED])
@pytest.mark.parametrize("protocol", ["emp", "am2", "via", "ssam", "openmx"])
def test_every_result_equals_numpys_under_loss(tmp_path: Path, protocol: str, seed: int) -> None:
    cases = 200 if LONG else {"ssam": 8, "openmx": 12}.get(protocol, 20)  # ATM's many cells take long
    network = {"kind": "atm", "rate": "140mbit", "overhead": 2} if protocol == "ssam" else {"rate": "1gbit"}
    cluster = Cluster.star(RANKS, delay="20us", loss="1%", seed=4, **network)
    result = testbed.run(
        cluster, compare, protocol=protocol, mode="sim", seed=seed, check=True, output=tmp_path / "run", timeout=600.0,
        settings={"cases": cases},
    )  # fmt: skip
    assert result.results == {f"n{rank + 1}": cases for rank in range(RANKS)}
    assert result.verdict.grade is Grade.TRUSTED
    assert result.checks is not None
    assert result.checks.checks["collective calls"].checked >= cases
    assert sum(counters.get(RESENT[protocol], 0) for counters in result.counters.values())

"""Every workload of MPI on SSAM, with short messages, on links that lose cells."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster
from tests.sim.small_workloads import SMALL

SHORTER: dict[str, dict[str, object]] = {
    "bandwidth": {"sizes": (1024, 4096)},
    "comb": {"size": 1024},
    "permutation": {"size": 1024},
}


@pytest.mark.parametrize("name", SMALL)
def test_the_workload_survives_the_loss_of_cells(name: str) -> None:
    cluster = Cluster.star(3, kind="atm", rate="140mbit", overhead=2, delay="5us", loss="1%", seed=3)
    settings = {**SMALL[name], **SHORTER.get(name, {})}
    result = testbed.run(cluster, name, protocol="ssam", mode="sim", settings=settings)
    assert result.rows
    assert sum(counters["resent"] + counters["hurried"] for counters in result.counters.values())


def test_a_long_message_on_a_slow_link_is_measured_within_the_time_limit() -> None:
    """A round trip of 64 KiB takes 2 s here: the hundred of a warm-up would exceed the time limit."""
    cluster = Cluster.star(2, kind="atm", rate="700kbit")
    run = testbed.run(cluster, "pingpong", protocol="ssam", mode="sim", settings={"sizes": (65536,)}, timeout=60)
    assert [row["count"] for row in run.rows] == [1]

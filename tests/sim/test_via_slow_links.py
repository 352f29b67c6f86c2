"""VIA's connections where a round trip exceeds the time-out, so that copies of every frame are in flight."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster
from tests.live.vip_connections import VipConnections


@pytest.mark.parametrize("delay", ["4ms", "6ms"])
@pytest.mark.parametrize("seed", range(3))
def test_connections_have_the_outcome_of_fast_links(seed: int, delay: str) -> None:
    slow_run = testbed.run(_star(delay, "2%", seed), VipConnections, protocol="via", mode="sim")
    quick_run = testbed.run(_star("1us", "0%", seed), VipConnections, protocol="via", mode="sim")
    assert slow_run.results == quick_run.results
    assert sum(counters["frames_resent"] for counters in slow_run.counters.values()) > 100


def _star(delay: str, loss: str, seed: int) -> Cluster:
    return Cluster.star(3, rate="1gbit", delay=delay, loss=loss, seed=seed)

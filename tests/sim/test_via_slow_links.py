"""VIA's connections over links whose round trip exceeds the time-out: copies of every frame are in flight."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster
from tests.live.vip_connections import VipConnections


@pytest.mark.parametrize("delay", ["4ms", "6ms"])
@pytest.mark.parametrize("seed", range(3))
def test_connections_end_as_on_fast_links(seed: int, delay: str) -> None:
    slow = testbed.run(_star(delay, "2%", seed), VipConnections, protocol="via", mode="sim")
    fast = testbed.run(_star("1us", "0%", seed), VipConnections, protocol="via", mode="sim")
    assert slow.results == fast.results
    assert sum(counters["frames_resent"] for counters in slow.counters.values()) > 100


def _star(delay: str, loss: str, seed: int) -> Cluster:
    return Cluster.star(3, rate="1gbit", delay=delay, loss=loss, seed=seed)

"""iperf3 between two nodes measures the link's bottleneck, delay and loss."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed import RunningCluster, RunningNode
from tests.live.applications.servers import server

pytestmark = [pytest.mark.requires("root", "iperf3"), pytest.mark.usefixtures("machine")]

MBIT = 1_000_000


def stream(client: RunningNode, *options: str) -> dict[str, Any]:
    """Run iperf3 for one second and return the "end" part of its report."""
    report = json.loads(client.run(["iperf3", "-J", "-t", "1", "-c", "n2", *options], timeout=60).stdout)
    end: dict[str, Any] = report["end"]
    return end


@pytest.mark.cluster("star-2", mode="live")
def test_iperf3_measures_bottleneck_delay_and_loss(cluster: RunningCluster) -> None:
    with server(cluster["n2"], ["iperf3", "-s"], 5201):
        free = stream(cluster["n1"])
        with cluster.inject("n1", rate="20mbit", delay="5ms"):
            narrow = stream(cluster["n1"])
        with cluster.inject("n1", rules=["drop udp.dport == 5201 and every(5)"], direction="out"):
            lossy = stream(cluster["n1"], "--udp", "-b", "4M", "-l", "500")
    assert free["sum_received"]["bits_per_second"] > 100 * MBIT
    assert 10 * MBIT < narrow["sum_received"]["bits_per_second"] < 20 * MBIT
    assert free["streams"][0]["sender"]["min_rtt"] < 10_000  # us
    assert narrow["streams"][0]["sender"]["min_rtt"] >= 10_000  # 5 ms each way
    received = lossy["sum_received"]["packets"]  # a busy server stops before it has read the last datagrams
    assert 500 <= received <= lossy["sum_sent"]["packets"]
    assert received // 5 - 1 <= lossy["sum_received"]["lost_packets"] <= received // 5 + 1

"""Redis and redis-benchmark on two nodes: latency limits the rate of single requests, not of pipelined ones."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from testbed import RunningCluster, RunningNode
from tests.live.applications.servers import server

pytestmark = [pytest.mark.requires("root", "redis-server", "redis-benchmark"), pytest.mark.usefixtures("machine")]

PORT = 6379


def benchmark(client: RunningNode, *options: str) -> dict[str, float]:
    """Return one client's figures for SET: "rps", "avg_latency_ms" and others."""
    command = ["redis-benchmark", "-h", "n2", "-c", "1", "-t", "set", "--csv", *options]
    (row,) = csv.DictReader(client.run(command, timeout=60).stdout.splitlines())
    return {name: float(value) for name, value in row.items() if name != "test"}


@pytest.mark.cluster("star-2", mode="live")
def test_latency_limits_single_requests_but_not_pipelined_ones(cluster: RunningCluster, tmp_path: Path) -> None:
    serve = ["redis-server", "--port", str(PORT), "--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]
    with server(cluster["n2"], serve, PORT, cwd=tmp_path):
        near = benchmark(cluster["n1"], "-n", "200")
        with cluster.inject("n2", delay="5ms"):
            far = benchmark(cluster["n1"], "-n", "50")
            pipelined = benchmark(cluster["n1"], "-n", "1000", "-P", "50")
        assert cluster["n1"].run(["redis-cli", "-h", "n2", "dbsize"]).stdout == "1\n"
    assert near["min_latency_ms"] < 5
    assert far["min_latency_ms"] >= 10
    assert far["rps"] <= 100  # one in 10 ms
    assert pipelined["rps"] > 10 * far["rps"]

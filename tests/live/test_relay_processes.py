"""A relay of several processes, as on a machine with many cores: each forwards its share of the links."""

from __future__ import annotations

import json

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from testbed.runtime.relay.orders import RelayPaths

pytestmark = [pytest.mark.requires("root", "ping"), pytest.mark.usefixtures("machine")]


def pids(cluster: RunningCluster) -> list[int]:
    report = relay_client.report(Store(), cluster.state)
    assert report is not None
    return [process["pid"] for process in report["processes"]]


def test_links_are_distributed_and_keep_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_client, "_process_count", lambda: 3)
    with Cluster.star(6).up() as cluster:
        with cluster.inject("all", delay="1ms"):
            report = relay_client.report(Store(), cluster.state)
            orders = RelayPaths(Store().directory(cluster.name)).read_orders()
            assert report is not None
            assert orders is not None
            assert len(pids(cluster)) == len(set(orders.processes_of().values())) > 1
            assert report["links"].keys() == {link.name for link in orders.links}
            initial_pids = pids(cluster)
            for node in ("n2", "n3", "n4", "n5", "n6"):
                cluster["n1"].run(["ping", "-q", "-c1", "-W10", node])
            with cluster.inject("n2", delay="3ms"):
                assert pids(cluster) == initial_pids
                output = cluster["n1"].run(["ping", "-c1", "-W10", "n2"]).stdout
                assert float(output.split("time=")[1].split()[0]) > 8.0
            assert pids(cluster) == initial_pids
        assert relay_client.report(Store(), cluster.state) is None
        with cluster.inject("n1", delay="1ms"):
            assert len(pids(cluster)) == 1
        events = (Store().directory(cluster.name) / "events.jsonl").read_text().splitlines()
        assert not [event for event in map(json.loads, events) if event["event"] in ("relay died", "relay restarted")]

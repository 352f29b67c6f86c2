"""Captures of an ordinary user: receive rings are not subject to the limits of socket buffers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.services import relay_client
from testbed.kernel import userns
from tests.live import node_sockets
from tests.live.ordinary_user import as_user, wait_for_success
from tests.sim.scapy_captures import read_capture

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]

# Modules that only a child uses are imported before it drops its privileges and cannot read them.
for _module in ("testbed.observe.sniff.capture",):
    import_module(_module)


@pytest.mark.parametrize("lasting", [True, False])
def test_an_ordinary_user_captures_lost_frames(home: Path, lasting: bool) -> None:
    def body() -> None:
        with Cluster.back_to_back(loss="30%", delay="1ms").up("pair", keep=lasting) as cluster:
            with cluster.capture("n1", home / "x.pcapng") as capture:
                _send_both_ways(cluster)
            report = relay_client.report(Store(), cluster.state)
            assert report is not None
            ((_, directions),) = report["links"].items()
            lost = sum(directions[direction]["counters"]["loss"] for direction in ("forward", "backward"))
            assert capture.result.fates == {"loss": lost}
            assert lost > 20
            assert capture.result.complete
            assert sum(bool(met) for *_, met in read_capture(home / "x.pcapng")) == lost
        (home / "x.pcapng").unlink()

    wait_for_success(as_user(home, body))


def _send_both_ways(cluster: RunningCluster) -> None:
    holder = cluster.state.holder
    assert holder is not None

    def send() -> None:
        a, b = node_sockets.mac(cluster, "n1"), node_sockets.mac(cluster, "n2")
        with node_sockets.nic_sockets(cluster) as nics:
            for number in range(100):
                nics["n1"].send(node_sockets.numbered_frame(b, a, number))
                nics["n2"].send(node_sockets.numbered_frame(a, b, number))

    userns.call_inside(holder.pid, send)

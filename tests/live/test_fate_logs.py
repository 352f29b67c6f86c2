"""Replay of fates that the relay logged in another run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster, TestbedError
from testbed.errors import NotFoundError
from testbed.runtime.logs import read_log
from tests.live import node_sockets
from tests.live.machine_state import eventually
from tests.live.traffic import RECEIVE_BYTES, relay_report

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

COUNT = 300


def arrived_numbers(cluster: RunningCluster) -> list[int]:
    """Send COUNT frames from n1; return the numbers of those that arrive at n2, in order."""
    with node_sockets.nic_sockets(cluster) as nics:
        nics["n2"].setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE: room for all frames
        for number in range(COUNT):
            nics["n1"].send(
                node_sockets.numbered_frame(node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1"), number)
            )
        numbers: list[int] = []

        def all_delivered_received() -> bool:
            ((_, direction_report),) = relay_report(cluster)["links"].items()
            numbers.extend(node_sockets.frame_numbers(node_sockets.received(nics["n2"])))
            counted = direction_report["forward"]["counters"]
            return counted["offered"] == COUNT and counted["delivered"] == len(numbers)

        eventually(all_delivered_received, "n2 has received all frames that the relay delivered")
        return numbers


def test_a_replayed_log_gives_the_same_fates_with_another_seed(tmp_path: Path) -> None:
    log = tmp_path / "fates.jsonl"
    with Cluster.back_to_back().up(fates=log) as cluster, cluster.inject("n1", loss="20%", duplicate="10%"):
        first = arrived_numbers(cluster)
    assert {record.cause for record in read_log(log)} == {"loss", "duplicate"}
    with Cluster.back_to_back(seed=99).up() as cluster, cluster.inject("all", replay=log):
        assert arrived_numbers(cluster) == first
    with Cluster.back_to_back(seed=99).up() as cluster, cluster.inject("n1", loss="20%", duplicate="10%"):
        assert arrived_numbers(cluster) != first


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("garbage\n", "line 1: not a record of a fate"),
        (
            '{"link": "a", "direction": "forward", "epoch": 0, "flow": [1, 2, 3], "n": 1, "cause": "loss", '
            '"fate": {"drop": true}, "detail": ""}\n'
            '{"link": "a", "direction": "forward", "epoch": 1, "flow": [1, 2, 3], "n": 1, "cause": "loss", '
            '"fate": {"drop": true}, "detail": ""}\n',
            "line 2: the impairments of a forward changed",
        ),
    ],
)
def test_an_inconsistent_fate_log_is_rejected_with_its_line(tmp_path: Path, lines: str, words: str) -> None:
    log = tmp_path / "fates.jsonl"
    log.write_text(lines)
    with Cluster.back_to_back().up() as cluster:
        with pytest.raises(TestbedError, match=words):
            cluster.inject("all", replay=log)
        with pytest.raises(NotFoundError, match=r"nothing\.jsonl"):
            cluster.inject("all", replay=tmp_path / "nothing.jsonl")
        assert not cluster.state.injected

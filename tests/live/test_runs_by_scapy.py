"""Runs in namespaces with Scapy as codec."""

from __future__ import annotations

import pytest
from scapy.packet import Packet

import testbed
from testbed import Cluster
from testbed.controller.runs.run_options import Codec
from testbed.workloads.form import Comm, Node

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


@pytest.mark.parametrize("codec", ["generated", "scapy"])
def test_node_processes_use_scapy_only_on_request(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    built, build = [0], Packet.build

    def count_build(packet: Packet) -> bytes:
        built[0] += 1
        return bytes(build(packet))

    async def greet(comm: Comm, node: Node) -> int:  # noqa: ARG001
        """Return the number of packets built by this process during an exchange."""
        before = built[0]
        await comm.sendrecv("hello", 1 - comm.rank, source=1 - comm.rank)
        return built[0] - before

    monkeypatch.setattr(Packet, "build", count_build)
    results = testbed.run(Cluster.back_to_back(), greet, codec=codec).results
    assert sorted(results) == ["n1", "n2"]
    assert {bool(count) for count in results.values()} == {codec == "scapy"}

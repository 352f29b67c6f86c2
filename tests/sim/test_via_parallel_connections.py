"""Several VIs of two nodes that connect with one discriminator, under loss."""

from __future__ import annotations

import pytest

import testbed
from protocols.via.host import ViaNic
from protocols.via.vipl_names import OP_SENDRECV
from protocols.via.virtual_interface import Descriptor
from testbed import Cluster
from testbed.workloads.form import Native, Node

COUNT = 4
SIZE = 8


class ParallelConnections(Native[ViaNic]):
    """Connect several VIs with one discriminator. A node's result has for each VI the number of its peer's."""

    protocol = "via"

    async def program(self, library: ViaNic, node: Node) -> list[int]:  # noqa: ARG002
        nic, vis = library, []
        ptag = await nic.create_ptag()
        buffer = nic.allocate(2 * COUNT * SIZE)
        memory = await nic.register(buffer, ptag)
        for number in range(COUNT):
            vi = await nic.create_vi(ptag)
            vi.post_receive(Descriptor(data=(memory.segment(number * SIZE, SIZE),)))
            vi.connect_peer_request(1 - nic.number, b"one of several")
            vis.append(vi)
        for number, vi in enumerate(vis):
            await vi.connect_peer_wait()
            begin = (COUNT + number) * SIZE
            buffer[begin : begin + SIZE] = bytes([number]) * SIZE
            vi.post_send(Descriptor(OP_SENDRECV, (memory.segment(begin, SIZE),)))
        for vi in vis:
            assert not (await vi.receive_queue.wait()).has_failed
            await vi.send_queue.wait()
        return [buffer[number * SIZE] for number in range(COUNT)]


@pytest.mark.parametrize("seed", [17, 18, 24, 26])
def test_each_vi_has_one_peer(seed: int) -> None:
    cluster = Cluster.star(2, rate="1gbit", delay="10us", loss="20%", seed=seed)
    results = testbed.run(cluster, ParallelConnections, protocol="via", mode="sim", timeout=20).results
    assert [results["n2"][peer] for peer in results["n1"]] == list(range(COUNT))

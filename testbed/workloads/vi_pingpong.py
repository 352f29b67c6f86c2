"""Ping-pong on virtual interfaces, without MPI: the one-way time of VIA's sends and receives."""

from __future__ import annotations

from protocols.via.host import ViaNic
from protocols.via.vip_descriptors import Memory
from protocols.via.virtual_interface import Descriptor, Vi
from testbed.workloads.form import Native, Node
from testbed.workloads.quantiles import quantiles
from testbed.workloads.workload_settings import MessageSizes

_PORT = b"pingpong"


class ViPingPong(Native[ViaNic]):
    """Half the round trip between nodes 0 and 1 on virtual interfaces, for messages of each size, in registered memory that
    is reused.

    A receive descriptor is posted before each send. count: number of round trips.
    """

    protocol = "via"
    supports_restarts = False
    least = 2

    sizes: MessageSizes = (4,)
    count: int = 200

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("count: 1 or more")

    async def program(self, nic: ViaNic, node: Node) -> None:
        if node.rank > 1:
            return
        ptag = await nic.create_ptag()
        memory = [await nic.register(nic.allocate(max(1, *self.sizes)), ptag) for _ in range(2)]
        vi = await nic.create_vi(ptag)
        for size in self.sizes:
            _post_receive(vi, memory[0], size)
            if vi.state.name == "IDLE":
                await vi.connect_peer(1 - node.rank, _PORT)
            trips = [
                await self._trip(vi, memory, node, size, last=trip == self.count) for trip in range(self.count + 1)
            ]
            if not node.rank:
                node.row(size_bytes=size, count=self.count, **quantiles(trips[1:], 2))

    async def _trip(self, vi: Vi, memory: list[Memory], node: Node, size: int, last: bool) -> int:
        """Send a message and receive the answer (node 0), or the reverse (node 1); return the nanoseconds. Unless the
        trip is the last, the next receive is posted before the message that triggers it is sent."""
        start_time = node.now()
        if node.rank:
            await vi.receive_queue.wait()
            if not last:
                _post_receive(vi, memory[0], size)
        vi.post_send(Descriptor(data=(memory[1].segment(0, size),)))
        if not node.rank:
            await vi.receive_queue.wait()
            if not last:
                _post_receive(vi, memory[0], size)
        elapsed = node.now() - start_time
        await vi.send_queue.wait()
        return elapsed


def _post_receive(vi: Vi, memory: Memory, size: int) -> None:
    vi.post_receive(Descriptor(data=(memory.segment(0, size),)))

"""Bandwidth of bulk messages, from one node's memory into another's segment."""

from __future__ import annotations

from protocols.active_messages.am_interface import ActiveMessages, Token
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.am_requests import REPLY, STOP, Server
from testbed.workloads.active_messages.barrier import TAG, Collectives, serve_until
from testbed.workloads.form import Native, Node, VerificationError
from testbed.workloads.quantiles import warm_up
from testbed.workloads.workload_settings import MessageSizes

_DATA = 4


class ActiveBulk(Native[ActiveMessages]):
    """On active messages: bandwidth from node 0 to node 1 by bulk messages, with as many in flight as there are credits.

    sizes: bytes of a message. count: number of messages of each size.
    """

    supports_restarts = False

    sizes: MessageSizes = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
    count: int = 100

    def __post_init__(self) -> None:
        if self.count < 1 or not self.sizes or min(self.sizes) < 1:
            raise ValueError("count: 1 or more; sizes: one or more, each 1 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        if node.rank > 1:
            return
        collectives = Collectives(library, node, 2)
        window = library.window
        if node.rank:
            server = Server(library, 1)
            endpoint = server.endpoints[0]
            endpoint.segment = bytearray(window * max(self.sizes))
            endpoint.set_handler(_DATA, _on_data)
            await collectives.barrier()
            await server.serve_until_stopped(endpoint, 1)
            return
        endpoint = library.allocate_bundle().allocate_endpoint()
        endpoint.tag = TAG
        free_slots = list(range(window))  # free slots of the segment
        endpoint.set_handler(REPLY, lambda _, slot, *rest: free_slots.append(slot))  # noqa: ARG005
        endpoint.map(0, EndpointName(1, 1), TAG)
        await collectives.barrier()
        for size in self.sizes:
            took = 0
            for count in (warm_up(self.count), self.count):
                start_time = node.now()
                for number in range(count):
                    await serve_until(endpoint, lambda: bool(free_slots))
                    slot, data = free_slots.pop(), bytes((number & 0xFF,)) * size
                    await endpoint.request_bulk(0, _DATA, data, slot * size, slot, number)
                await serve_until(endpoint, lambda: len(free_slots) == window)
                took = node.now() - start_time
            node.row(size_bytes=size, count=self.count, bandwidth_bit_s=8e9 * size * self.count / max(1, took))
        await endpoint.request(0, STOP, free_slots.pop(), 0, 0, 0)
        await serve_until(endpoint, lambda: len(free_slots) == window)


def _on_data(token: Token, data: memoryview, slot: int, number: int) -> None:
    if not data[0] == data[-1] == number & 0xFF:
        raise VerificationError(f"message {number} has arrived with changed data")
    token.reply(REPLY, slot)

"""Permutations, as in the paper: all nodes send concurrently, each to one other node, so that each pattern shares links.

"Bandwidth measured using medium messages, whereas RTT measured using 4-word Active Messages" (the paper's section on
topology).
"""

from __future__ import annotations

from typing import Final

from protocols.active_messages.am_interface import ActiveMessages, Endpoint, Token
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.am_requests import Client, Server
from testbed.workloads.active_messages.barrier import TAG, Collectives, serve_until
from testbed.workloads.form import Native, Node, VerificationError
from testbed.workloads.permutation import partners
from testbed.workloads.workload_settings import Size

_DATA, _RECEIVED = 5, 6
_PATTERNS = {"cshift": "shift", "neighbor": "neighbour", "bisection": "bisection"}


class ActivePermutations(Native[ActiveMessages]):
    """On active messages: aggregate and per-node bandwidth, and the mean round trip, of the permutations cshift, neighbor
    and bisection.

    size: bytes of a medium message, limited by a packet's payload. count: number of messages of each node. trips: number of
    consecutive round trips of each node.
    """

    supports_restarts = False

    size: Size = 8192
    count: int = 24
    trips: int = 16

    def __post_init__(self) -> None:
        if min(self.count, self.trips, self.size) < 1:
            raise ValueError("size, count and trips: 1 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        collectives = Collectives(library, node, len(node.names))
        server = Server(library, 1)
        served_endpoint = server.endpoints[0]
        size = min(self.size, library.medium_room(1))
        for name, pattern in _PATTERNS.items():
            destination, _ = partners(pattern, node.rank, len(node.names))
            is_sender = destination != node.rank
            client = Client(library, node, EndpointName(destination, 1), 1)
            stream = CreditStream(library, node, EndpointName(destination, 1), size)
            stream.accept_at(served_endpoint)
            clients = server.stop_counts[served_endpoint] + is_sender  # a permutation: a node that sends also receives
            server_task = node.spawn(server.serve_until_stopped(served_endpoint, clients), f"{name}, answering")
            await collectives.barrier()
            took = trips_time = 0
            if is_sender:
                await client.burst(1)
                await stream.send(1)
            await collectives.barrier()
            if is_sender:
                took = await stream.send(self.count)
            await collectives.barrier()
            if is_sender:
                for _ in range(self.trips):
                    trips_time += await client.burst(1)
            gathered = await collectives.gather((took, trips_time))
            if is_sender:
                await client.stop()
            await server_task
            client.endpoint.free()
            stream.endpoint.free()
            if gathered is not None:
                rates = [8e9 * size * self.count / took for took, _ in gathered if took]
                trips = [trips_time / self.trips for _, trips_time in gathered if trips_time]
                node.row(
                    pattern=name,
                    local=int(pattern != "bisection"),  # most of its traffic stays within a subcluster
                    senders=len(rates),
                    size_bytes=size,
                    count=self.count,
                    aggregate_bit_s=sum(rates),
                    mean_bit_s=sum(rates) / len(rates),
                    both_bit_s=2 * sum(rates) / len(rates),  # of a node's bus: sending and receiving
                    slowest_bit_s=min(rates),
                    fastest_bit_s=max(rates),
                    round_trip_ns=round(sum(trips) / len(trips)),
                )


class CreditStream:
    """Stream of medium messages from a separate endpoint to a server's endpoint (see `accept_at`)."""

    def __init__(self, library: ActiveMessages, node: Node, server: EndpointName, size: int) -> None:
        """size: bytes of each message."""
        self._now = node.now
        self._size = size
        self._reply_count = 0
        endpoint = library.allocate_bundle().allocate_endpoint()
        self.endpoint: Final = endpoint
        endpoint.tag = TAG
        endpoint.set_handler(_RECEIVED, self._on_reply)
        endpoint.map(0, server, TAG)

    def accept_at(self, server: Endpoint) -> None:
        """Let an endpoint of this node receive streams."""
        server.set_handler(_DATA, _on_data)

    async def send(self, count: int) -> int:
        """Send `count` messages and await all replies; return the duration in nanoseconds."""
        start_time, self._reply_count = self._now(), 0
        for number in range(count):
            await self.endpoint.request_medium(0, _DATA, bytes((number & 0xFF,)) * self._size, number)
        await serve_until(self.endpoint, lambda: self._reply_count >= count)
        return self._now() - start_time

    def _on_reply(self, _: Token) -> None:
        self._reply_count += 1


def _on_data(token: Token, data: memoryview, number: int) -> None:
    if not data[0] == data[-1] == number & 0xFF:
        raise VerificationError(f"message {number} has arrived with changed data")
    token.reply(_RECEIVED)

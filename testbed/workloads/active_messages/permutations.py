"""Permutations, as in the paper: all nodes send at once, each to one other, so that links are shared as in each
pattern.

"Bandwidth measured using medium messages, whereas RTT measured using 4-word Active Messages" (section on topology).
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

_DATA, _TAKEN = 5, 6
_PATTERNS = {"cshift": "shift", "neighbor": "neighbour", "bisection": "bisection"}


class ActivePermutations(Native[ActiveMessages]):
    """On active messages: cshift, neighbor and bisection: bandwidth of all and of each node, and the mean round trip.

    size: bytes of medium messages, limited by the room of a packet. count: messages of each node. trips: consecutive
    round trips of each node.
    """

    bears_restarts = False

    size: Size = 8192
    count: int = 24
    trips: int = 16

    def __post_init__(self) -> None:
        if min(self.count, self.trips, self.size) < 1:
            raise ValueError("size, count and trips: 1 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        meeting = Collectives(library, node, len(node.names))
        serving = Server(library, 1)
        own = serving.endpoints[0]
        size = min(self.size, library.medium_room(1))
        for name, pattern in _PATTERNS.items():
            to, _ = partners(pattern, node.rank, len(node.names))
            sends = to != node.rank
            asking = Client(library, node, EndpointName(to, 1), 1)
            streaming = CreditStream(library, node, EndpointName(to, 1), size)
            streaming.take(own)
            clients = serving.stopped[own] + sends  # a permutation: a node that sends also receives
            answered = node.spawn(serving.until_stopped(own, clients), f"{name}, answering")
            await meeting.barrier()
            took = took_round = 0
            if sends:
                await asking.burst(1)
                await streaming.send(1)
            await meeting.barrier()
            if sends:
                took = await streaming.send(self.count)
            await meeting.barrier()
            if sends:
                for _ in range(self.trips):
                    took_round += await asking.burst(1)
            gathered = await meeting.gather((took, took_round))
            if sends:
                await asking.stop()
            await answered
            asking.endpoint.free()
            streaming.endpoint.free()
            if gathered is not None:
                rates = [8e9 * size * self.count / took for took, _ in gathered if took]
                trips = [took / self.trips for _, took in gathered if took]
                node.row(
                    pattern=name,
                    local=int(pattern != "bisection"),  # most of it stays within a subcluster
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
    """Stream from an endpoint of its own to a server's (see `take`)."""

    def __init__(self, library: ActiveMessages, node: Node, server: EndpointName, size: int) -> None:
        """size: bytes of each message."""
        self._now = node.now
        self._size = size
        self._taken = 0
        endpoint = library.allocate_bundle().allocate_endpoint()
        self.endpoint: Final = endpoint
        endpoint.tag = TAG
        endpoint.set_handler(_TAKEN, self._count)
        endpoint.map(0, server, TAG)

    def take(self, server: Endpoint) -> None:
        """Let an endpoint of this node receive streams."""
        server.set_handler(_DATA, _taken)

    async def send(self, count: int) -> int:
        """Send `count` messages and await all replies; return the time taken, in nanoseconds."""
        begun, self._taken = self._now(), 0
        for number in range(count):
            await self.endpoint.request_medium(0, _DATA, bytes((number & 0xFF,)) * self._size, number)
        await serve_until(self.endpoint, lambda: self._taken >= count)
        return self._now() - begun

    def _count(self, _: Token) -> None:
        self._taken += 1


def _taken(token: Token, data: memoryview, number: int) -> None:
    if not data[0] == data[-1] == number & 0xFF:
        raise VerificationError(f"message {number} has come with other data than was sent")
    token.reply(_TAKEN)

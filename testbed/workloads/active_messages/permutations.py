"""Permutations, as in the paper: all nodes send at once, each to one other, so that links are shared as in each
pattern.

"Bandwidth measured using medium messages, whereas RTT measured using 4-word Active Messages" (section on topology).
"""

from __future__ import annotations

from protocols.am2.host.endpoint_names import EndpointName
from protocols.am2.host.library import ActiveMessages
from testbed.workloads.active_messages.am_requests import Client, Server
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.active_messages.credit_streams import CreditStream
from testbed.workloads.form import Native, Node
from testbed.workloads.permutation import partners
from testbed.workloads.workload_settings import Size

_PATTERNS = {"cshift": "shift", "neighbor": "neighbour", "bisection": "bisection"}


class ActivePermutations(Native[ActiveMessages]):
    """On AM-II's endpoints: cshift, neighbor and bisection: bandwidth of all and of each node, and the mean round trip.

    size: bytes of medium messages, limited by the room of a packet. count: messages of each node. trips: consecutive
    round trips of each node.
    """

    protocol = "am2"
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
        size = min(self.size, library.max_medium)
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

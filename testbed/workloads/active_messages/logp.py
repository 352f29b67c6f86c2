"""LogP parameters of short messages, measured as in `testbed.workloads.mpi_logp`, but without MPI."""

from __future__ import annotations

from statistics import median

from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.am_requests import Client, Server
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.form import Native, Node
from testbed.workloads.quantiles import quantiles


class ActiveLogP(Native[ActiveMessages]):
    """On active messages: round trip, o_s, o_r, g and L of requests of four words and their replies, between nodes 0 and 1.

    o_r is the rest of the host core's time, and L the rest of half the round trip; in namespaces both include the firmware,
    which runs on the same core. count: number of round trips. burst: number of requests sent back to back; g is the
    additional time of each after the first. rounds: number of bursts.
    """

    supports_restarts = False

    count: int = 200
    burst: int = 200
    rounds: int = 3

    def __post_init__(self) -> None:
        if min(self.count, self.rounds) < 1 or self.burst < 2:
            raise ValueError("count and rounds: 1 or more; burst: 2 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        if node.rank > 1:
            return
        collectives = Collectives(library, node, 2)
        if node.rank:
            server = Server(library, 1)
            await collectives.barrier()
            await server.serve_until_stopped(server.endpoints[0], 1)
            return
        client = Client(library, node, EndpointName(1, 1), library.window)
        await collectives.barrier()
        await client.burst(10)  # loads both endpoints into their NICs
        trips, issues = [], []
        for _ in range(self.count):
            issues.append(await client.issue())
        for _ in range(self.count):
            await client.burst(1)
            trips += client.trips
        cpu_time = node.cpu()
        single = median([await client.burst(1) for _ in range(self.rounds)])
        cpu_time = (node.cpu() - cpu_time) // self.rounds
        full_burst = median([await client.burst(self.burst) for _ in range(self.rounds)])
        await client.stop()
        trip, send, gap = median(trips), median(issues), (full_burst - single) / (self.burst - 1)
        receive = max(0.0, cpu_time - send)
        node.row(measure="round trip", words=4, count=self.count, **quantiles(trips))
        node.row(
            measure="logp",
            round_trip_ns=round(trip),
            o_s_ns=round(send),
            o_r_ns=round(receive),
            o_both_ns=round(send + receive),
            g_ns=round(gap),
            peak_per_s=1e9 / max(1, gap),
            l_ns=round(trip / 2 - send - receive),
        )

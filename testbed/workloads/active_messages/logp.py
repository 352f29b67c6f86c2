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
    """On active messages: requests of four words and their replies between nodes 0 and 1: round trip, o_s, o_r, g and
    L.

    o_r is the rest of the host core's time, and L the rest of half the round trip: in namespaces, where the firmware
    runs on that core, too, they are not the host's and the network's alone. count: round trips. burst: requests without
    a pause, whose gap is the time that each adds; rounds: bursts.
    """

    bears_restarts = False

    count: int = 200
    burst: int = 200
    rounds: int = 3

    def __post_init__(self) -> None:
        if min(self.count, self.rounds) < 1 or self.burst < 2:
            raise ValueError("count and rounds: 1 or more; burst: 2 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        if node.rank > 1:
            return
        meeting = Collectives(library, node, 2)
        if node.rank:
            serving = Server(library, 1)
            await meeting.barrier()
            await serving.until_stopped(serving.endpoints[0], 1)
            return
        asking = Client(library, node, EndpointName(1, 1), library.window)
        await meeting.barrier()
        await asking.burst(10)  # both endpoints are in their NICs
        trips, issues = [], []
        for _ in range(self.count):
            issues.append(await asking.issue())
        for _ in range(self.count):
            await asking.burst(1)
            trips += asking.trips
        used = node.cpu()
        few = median([await asking.burst(1) for _ in range(self.rounds)])
        used = (node.cpu() - used) // self.rounds
        many = median([await asking.burst(self.burst) for _ in range(self.rounds)])
        await asking.stop()
        trip, send, gap = median(trips), median(issues), (many - few) / (self.burst - 1)
        receive = max(0.0, used - send)
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

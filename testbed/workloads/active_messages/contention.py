"""Contention within one virtual network, as in the paper: N clients of one endpoint, as fast as they can."""

from __future__ import annotations

from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.am_requests import Client, Server
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.form import Native, Node
from testbed.workloads.quantiles import fairness, quantiles
from testbed.workloads.workload_settings import Duration


class ActiveContention(Native[ActiveMessages]):
    """On active messages: N clients ask one of node 0: aggregate and per-client rate with all their credits, and the
    round trip of clients with one request each under way.

    clients: the values of N. time: duration of each measurement, which follows a quarter of it.
    """

    bears_restarts = False

    clients: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    time: Duration = 20_000_000

    def __post_init__(self) -> None:
        if not self.clients or min(self.clients) < 1 or self.time < 4:
            raise ValueError("clients: each 1 or more; time: more than 0")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        most = max(self.clients)
        if most >= len(node.names):
            raise ValueError(f"{most} clients and a server: there are {len(node.names)} nodes")
        if node.rank > most:
            return
        meeting = Collectives(library, node, most + 1)
        serving = None if node.rank else Server(library, 1)
        window = library.window
        asking = [Client(library, node, EndpointName(0, 1), each) for each in (window, 1) if node.rank]
        for clients in self.clients:
            gathered: list[list[tuple[int, ...]]] = []
            for turn in range(2):
                mine: tuple[int, ...] = (0, 0, 0, 0)
                await meeting.barrier()
                if serving is not None:
                    endpoint = serving.endpoints[0]
                    await serving.until_stopped(endpoint, serving.stopped[endpoint] + clients)
                elif node.rank <= clients:
                    await asking[turn].keep_asking(self.time // 4, self.time)
                    trips = asking[turn].trips
                    summary = quantiles(trips)
                    mine = (len(trips), sum(trips), summary.get("p50_ns", 0), max(trips, default=0))
                gathered.append(await meeting.gather(mine) or [])
            if node.rank:
                continue
            full, single = (each[1 : clients + 1] for each in gathered)
            rates = [1e9 * count / self.time for count, *_ in full]
            node.row(
                clients=clients,
                requests_per_s=sum(rates),
                mean_per_s=sum(rates) / clients,
                slowest_per_s=min(rates),
                fastest_per_s=max(rates),
                fairness=fairness(rates),
                single_per_s=sum(1e9 * count / self.time for count, *_ in single),
                round_trip_ns=round(sum(total for _, total, *_ in single) / max(1, sum(count for count, *_ in single))),
                longest_ns=max(longest for *_, longest in single),
            )

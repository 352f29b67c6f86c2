"""Contention within one virtual network, as in the paper: N clients send requests to one endpoint as fast as possible."""

from __future__ import annotations

from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.am_requests import Client, Server
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.form import Native, Node
from testbed.workloads.quantiles import fairness, quantiles
from testbed.workloads.workload_settings import Duration


class ActiveContention(Native[ActiveMessages]):
    """On active messages: aggregate and per-client rate of N clients of one endpoint of node 0 that use all their credits,
    and the round trip of clients with one request in flight each.

    clients: the values of N. time: duration of each measurement, after a warm-up of a quarter of it.
    """

    supports_restarts = False

    clients: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    time: Duration = 20_000_000

    def __post_init__(self) -> None:
        if not self.clients or min(self.clients) < 1 or self.time < 4:
            raise ValueError("clients: each 1 or more; time: 4 ns or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        max_clients = max(self.clients)
        if max_clients >= len(node.names):
            raise ValueError(f"{max_clients} clients and a server need {max_clients + 1} nodes, got {len(node.names)}")
        if node.rank > max_clients:
            return
        collectives = Collectives(library, node, max_clients + 1)
        server = None if node.rank else Server(library, 1)
        window = library.window
        clients_by_turn = [
            Client(library, node, EndpointName(0, 1), client_window) for client_window in (window, 1) if node.rank
        ]
        for clients in self.clients:
            gathered: list[list[tuple[int, ...]]] = []
            for turn in range(2):
                client_values: tuple[int, ...] = (0, 0, 0, 0)
                await collectives.barrier()
                if server is not None:
                    endpoint = server.endpoints[0]
                    await server.serve_until_stopped(endpoint, server.stop_counts[endpoint] + clients)
                elif node.rank <= clients:
                    await clients_by_turn[turn].stream(self.time // 4, self.time)
                    trips = clients_by_turn[turn].trips
                    summary = quantiles(trips)
                    client_values = (len(trips), sum(trips), summary.get("p50_ns", 0), max(trips, default=0))
                gathered.append(await collectives.gather(client_values) or [])
            if node.rank:
                continue
            full, single = (values_by_rank[1 : clients + 1] for values_by_rank in gathered)
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

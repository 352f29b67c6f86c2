"""Many virtual networks, as in the paper: a server with an endpoint for each of its clients, in one thread or in a thread
for each endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.endpoint import Endpoint, Events
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.segment_driver import Residence
from testbed.workloads.active_messages.am_requests import Client, Server
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.form import Native, Node
from testbed.workloads.quantiles import fairness
from testbed.workloads.workload_settings import Duration

Threads = Literal["both", "one", "each"]

_FAULTS: Final = (Residence.FAULTING, Residence.LOADING)
_POLL_INTERVAL: Final = 20_000  # ns between checks of whether a suspended thread may continue


class ActiveNetworks(Native[ActiveMessages]):
    """On AM-II's endpoints: aggregate and per-client rates of N clients, each in a virtual network with its own endpoint of
    node 0.

    threads: one: the server is a single thread, which polls its endpoints in turn, and is suspended while an endpoint is
    loaded into the NIC; each: the server has a thread for each endpoint, which sleeps until a message arrives. switch: time
    of the host's core to switch to a thread. networks: the values of N. time: duration of each measurement, after a warm-up
    of a quarter of it.
    """

    protocol = "am2"
    supports_restarts = False

    threads: Threads = "both"
    networks: tuple[int, ...] = (1, 2, 4, 7, 8, 10, 14)
    time: Duration = 60_000_000
    switch: Duration = 10_000

    def __post_init__(self) -> None:
        if not self.networks or min(self.networks) < 1 or self.time < 4 or self.switch < 0:
            raise ValueError("networks: each 1 or more; time: 4 ns or more; switch: 0 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        max_networks = max(self.networks)
        if max_networks >= len(node.names):
            raise ValueError(
                f"{max_networks} clients and a server need {max_networks + 1} nodes, got {len(node.names)}"
            )
        if node.rank > max_networks:
            return
        collectives = Collectives(library, node, max_networks + 1)
        server = None if node.rank else Server(library, max_networks)
        window = library.settings.credits
        client = Client(library, node, EndpointName(0, node.rank), window) if node.rank else None
        for threads in ("one", "each") if self.threads == "both" else (self.threads,):
            for count in self.networks:
                answered = 0
                await collectives.barrier()
                faults_before = library.driver.fault_count
                if server is not None:
                    served_endpoints = [
                        library.endpoint(endpoint.name.endpoint) for endpoint in server.endpoints[:count]
                    ]
                    if threads == "one":
                        await self._in_turn(server, served_endpoints, node)
                    else:
                        await self._in_threads(server, served_endpoints, node)
                elif client is not None and node.rank <= count:
                    await client.stream(self.time // 4, self.time)
                    answered = len(client.trips)
                faults = library.driver.fault_count - faults_before
                gathered = await collectives.gather((answered,))
                if gathered is not None:
                    rates = [1e9 * messages / self.time for (messages,) in gathered[1 : count + 1]]
                    node.row(
                        threads=threads,
                        networks=count,
                        requests_per_s=sum(rates),
                        mean_per_s=sum(rates) / count,
                        slowest_per_s=min(rates),
                        fastest_per_s=max(rates),
                        fairness=fairness(rates),
                        faults=faults,
                    )

    async def _in_turn(self, server: Server, endpoints: Sequence[Endpoint], node: Node) -> None:
        state = endpoints[0].library.driver.state
        goals = {endpoint: server.stop_counts[endpoint] + 1 for endpoint in endpoints}
        while any(server.stop_counts[endpoint] < goal for endpoint, goal in goals.items()):
            handled = 0
            for endpoint in endpoints:
                while any(state(served) in _FAULTS for served in endpoints):
                    await node.sleep(_POLL_INTERVAL)
                if not endpoint.is_empty:
                    await endpoint.wait()  # until the endpoint is in the NIC
                    handled += await endpoint.poll()
            if not handled:
                await server.bundle.wait()

    async def _in_threads(self, server: Server, endpoints: Sequence[Endpoint], node: Node) -> None:
        threads = [
            node.spawn(
                serve_in_thread(server, endpoint, node, self.switch), f"thread of endpoint {endpoint.name.endpoint}"
            )
            for endpoint in endpoints
        ]
        for thread in threads:
            await thread


async def serve_in_thread(server: Server, endpoint: Endpoint, node: Node, switch: int) -> None:
    """Serve an endpoint in a separate thread until a client has stopped it. The paper: "A server thread waits on a binary
    semaphore posted upon message arrival". The thread disables arrival events, processes a batch of requests, and re-enables
    the events. switch: nanoseconds of the host's core to switch to the thread."""
    goal = server.stop_counts[endpoint] + 1
    while server.stop_counts[endpoint] < goal:
        await endpoint.wait()
        endpoint.event_mask = Events.NONE
        if switch:
            await node.compute(switch)
        await endpoint.poll()
        endpoint.event_mask = Events.NOT_EMPTY

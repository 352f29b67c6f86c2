"""The paper's contention within one virtual network: N clients of one endpoint, as fast as they can."""

from __future__ import annotations

from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.names import EndpointName
from testbed.workloads.active_messages.asking import Answering, Asking
from testbed.workloads.active_messages.meeting import Meeting
from testbed.workloads.form import Node
from testbed.workloads.native import Native
from testbed.workloads.quantiles import fairness, quantiles
from testbed.workloads.settings import Duration


class ActiveContention(Native[ActiveMessages]):
    """On AM-II's endpoints: N clients ask one of node 0: aggregate and per-client rate with all their credits, and the
    round trip of clients with one request each under way.

    clients: the Ns. time: for which each is measured, after a quarter of it.
    """

    protocol = "am2"

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
        meeting = Meeting(library, node, most + 1)
        serving = None if node.rank else Answering(library, 1)
        window = library.settings.credits
        asking = [Asking(library, node, EndpointName(0, 1), each) for each in (window, 1) if node.rank]
        for clients in self.clients:
            found: list[list[tuple[int, ...]]] = []
            for turn in range(2):
                mine: tuple[int, ...] = (0, 0, 0, 0)
                await meeting.barrier()
                if serving is not None:
                    endpoint = serving.endpoints[0]
                    await serving.until_stopped(endpoint, serving.stopped[endpoint] + clients)
                elif node.rank <= clients:
                    await asking[turn].keep_asking(self.time // 4, self.time)
                    trips = asking[turn].trips
                    told = quantiles(trips)
                    mine = (len(trips), sum(trips), told.get("p50_ns", 0), max(trips, default=0))
                found.append(await meeting.gather(mine) or [])
            if node.rank:
                continue
            full, single = (each[1 : clients + 1] for each in found)
            rates = [1e9 * count / self.time for count, *_ in full]
            node.row(
                clients=clients,
                requests_per_s=sum(rates),
                mean_per_s=sum(rates) / clients,
                slowest_per_s=min(rates),
                fastest_per_s=max(rates),
                fairness=fairness(rates),
                single_per_s=sum(1e9 * count / self.time for count, *_ in single),
                round_trip_ns=round(sum(total for _, total, *_ in single) / max(1, sum(one[0] for one in single))),
                longest_ns=max(longest for *_, longest in single),
            )

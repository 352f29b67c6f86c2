"""Bursts over time, as in the paper: more virtual networks than endpoint frames, a thread for each server endpoint, and
the message rate of each client in short and in long intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from protocols.active_messages.am_interface import Token
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.library import ActiveMessages
from testbed.workloads.active_messages.am_requests import Client, Server
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.active_messages.networks import serve_in_thread
from testbed.workloads.form import Native, Node
from testbed.workloads.workload_settings import Duration


class ActiveBursts(Native[ActiveMessages]):
    """On AM-II's endpoints: variation of the message rates of N clients over intervals of each length. Each client is in a
    virtual network with its own endpoint of node 0.

    networks: the values of N. intervals: lengths of the intervals. time: duration of each measurement, after a warm-up of a
    quarter of it; a multiple of each interval. switch: time of the host's core to switch to a thread.
    """

    protocol = "am2"
    supports_restarts = False

    networks: tuple[int, ...] = (7, 10)
    intervals: tuple[Duration, ...] = (4_000_000, 40_000_000)
    time: Duration = 160_000_000
    switch: Duration = 10_000

    def __post_init__(self) -> None:
        if not self.networks or min(self.networks) < 1 or self.switch < 0:
            raise ValueError("networks: each 1 or more; switch: 0 or more")
        lengths = self.intervals
        if not lengths or any(length < 1 or self.time < 2 * length or self.time % length for length in lengths):
            raise ValueError("intervals: each more than 0; time must be a multiple of each, at least twice")

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
        client = (
            _TimedClient(library, node, EndpointName(0, node.rank), library.settings.credits) if node.rank else None
        )
        for count in self.networks:
            await collectives.barrier()
            if server is not None:
                threads = [
                    node.spawn(
                        serve_in_thread(server, library.endpoint(endpoint.name.endpoint), node, self.switch),
                        f"thread of {endpoint.name}",
                    )
                    for endpoint in server.endpoints[:count]
                ]
                for thread in threads:
                    await thread
            elif client is not None and node.rank <= count:
                client.answers.clear()
                client.start_time = node.now() + self.time // 4
                await client.stream(self.time // 4, self.time)
            for interval in self.intervals:
                client_moments = _moments(client, interval, self.time) if client is not None else (0, 0, 0)
                gathered = await collectives.gather(client_moments)
                if gathered is not None:
                    node.row(
                        networks=count, interval_ns=interval, **_summary(gathered[1 : count + 1], interval, self.time)
                    )


class _TimedClient(Client):
    """Client that records the times at which replies arrive. start_time: start of the measurement."""

    def __init__(self, library: ActiveMessages, node: Node, server: EndpointName, window: int) -> None:
        self.answers: list[int] = []
        self.start_time = 0
        super().__init__(library, node, server, window)

    def _on_reply(self, token: Token, number: int, *rest: int) -> None:
        self.answers.append(self._now())
        super()._on_reply(token, number, *rest)


def _moments(client: _TimedClient, interval: int, time: int) -> tuple[int, int, int]:
    """Return the sum and the sum of squares of the numbers of replies per interval, and the number of intervals with
    replies."""
    indices = ((answer - client.start_time) // interval for answer in client.answers)
    counts = Counter(index for index in indices if 0 <= index < time // interval)
    return sum(counts.values()), sum(count * count for count in counts.values()), len(counts)


def _summary(moments: Sequence[tuple[int, ...]], interval: int, time: int) -> dict[str, float]:
    """Return means over clients: the rate; its standard deviation over the intervals, absolute and as a share of the rate;
    the share of the intervals with replies; and the rate in these intervals. moments: see `_moments`, by client."""
    intervals = time // interval
    means = [total / intervals for total, _, _ in moments]
    deviations = [
        sqrt(max(0.0, squares / intervals - mean * mean)) for (_, squares, _), mean in zip(moments, means, strict=True)
    ]
    busy = sum(count for _, _, count in moments)
    mean, intervals_per_second = sum(means) / len(means), 1e9 / interval
    return {
        "mean_per_s": intervals_per_second * mean,
        "deviation_per_s": intervals_per_second * sum(deviations) / len(deviations),
        "deviation_share": sum(deviations) / len(deviations) / mean if mean else 0.0,
        "busy_share": busy / (intervals * len(moments)),
        "burst_per_s": intervals_per_second * sum(total for total, _, _ in moments) / busy if busy else 0.0,
    }

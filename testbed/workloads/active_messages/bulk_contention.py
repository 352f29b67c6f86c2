"""Delivered bandwidth under contention within one virtual network, as in the paper: N clients send bulk messages to one
endpoint and receive replies of four words."""

from __future__ import annotations

from protocols.active_messages.am_interface import ActiveMessages, Token
from protocols.active_messages.endpoint_names import EndpointName
from testbed.workloads.active_messages.am_requests import REPLY, STOP, Server
from testbed.workloads.active_messages.barrier import TAG, Collectives, serve_until
from testbed.workloads.form import Native, Node, VerificationError
from testbed.workloads.quantiles import fairness
from testbed.workloads.workload_settings import Duration, Size

_DATA = 4


class ActiveBulkContention(Native[ActiveMessages]):
    """On active messages: aggregate and per-client bandwidth of N clients, which send bulk requests to one endpoint of node
    0, as many as they have credits.

    clients: the values of N. size: bytes of a request's data. time: duration of each measurement, after a warm-up of a
    quarter of it.
    """

    supports_restarts = False

    clients: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    size: Size = 8192
    time: Duration = 40_000_000

    def __post_init__(self) -> None:
        if not self.clients or min(self.clients) < 1 or self.time < 4 or self.size < 1:
            raise ValueError("clients: each 1 or more; size: 1 or more; time: 4 ns or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        max_clients = max(self.clients)
        if max_clients >= len(node.names):
            raise ValueError(f"{max_clients} clients and a server need {max_clients + 1} nodes, got {len(node.names)}")
        if node.rank > max_clients:
            return
        collectives = Collectives(library, node, max_clients + 1)
        window = library.window
        server = None if node.rank else Server(library, 1)
        if server is not None:
            server.endpoints[0].segment = bytearray(max_clients * window * self.size)
            server.endpoints[0].set_handler(_DATA, _on_data)
        client = _BulkClient(library, node, window, self.size) if node.rank else None
        for clients in self.clients:
            answered = 0
            await collectives.barrier()
            if server is not None:
                endpoint = server.endpoints[0]
                await server.serve_until_stopped(endpoint, server.stop_counts[endpoint] + clients)
            elif client is not None and node.rank <= clients:
                answered = await client.keep_sending(self.time // 4, self.time)
            gathered = await collectives.gather((answered,))
            if gathered is not None:
                rates = [8e9 * self.size * count / self.time for (count,) in gathered[1 : clients + 1]]
                node.row(
                    clients=clients,
                    size_bytes=self.size,
                    aggregate_bit_s=sum(rates),
                    mean_bit_s=sum(rates) / clients,
                    slowest_bit_s=min(rates),
                    fastest_bit_s=max(rates),
                    fairness=fairness(rates),
                )


class _BulkClient:
    """Client that sends to its own slots of the server's segment, one for each credit."""

    def __init__(self, library: ActiveMessages, node: Node, window: int, size: int) -> None:
        self._now = node.now
        self._size = size
        self._window = window
        self._first_slot = (node.rank - 1) * window
        self._free_slots = list(range(window))  # relative to `_first_slot`
        self._measured_period = (0, 0)  # start and end of the measurement
        self._count = 0
        self._endpoint = endpoint = library.allocate_bundle().allocate_endpoint()
        endpoint.tag = TAG
        endpoint.set_handler(REPLY, self._on_reply)
        endpoint.map(0, EndpointName(0, 1), TAG)

    async def keep_sending(self, settle: int, time: int) -> int:
        """Send as fast as possible, then stop the server; return the number of messages answered within `time` after
        `settle`, both in nanoseconds."""
        start_time = self._now() + settle
        self._measured_period, self._count = (start_time, start_time + time), 0
        number = 0
        while self._now() < start_time + time:
            await serve_until(self._endpoint, lambda: bool(self._free_slots))
            slot, number = self._free_slots.pop(), number + 1 & 0xFF
            data = bytes((number,)) * self._size
            offset = (self._first_slot + slot) * self._size
            await self._endpoint.request_bulk(0, _DATA, data, offset, slot, number, 0, 0)
        await self._drain()
        await self._endpoint.request(0, STOP, self._free_slots.pop(), 0, 0, 0)
        await self._drain()
        return self._count

    async def _drain(self) -> None:
        await serve_until(self._endpoint, lambda: len(self._free_slots) == self._window)

    def _on_reply(self, _: Token, slot: int, *rest: int) -> None:  # noqa: ARG002
        self._free_slots.append(slot)
        if self._measured_period[0] <= self._now() < self._measured_period[1]:
            self._count += 1


def _on_data(token: Token, data: memoryview, slot: int, number: int, *rest: int) -> None:
    if not data[0] == data[-1] == number:
        raise VerificationError(f"message {number} has arrived with changed data")
    token.reply(REPLY, slot, number, *rest)

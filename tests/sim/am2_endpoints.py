"""Endpoints that exchange active messages of all forms and record the outcome of every request.

Each endpoint has a task that sends requests to endpoints chosen by a seed, handles arrivals, and runs until the requests
of all endpoints have ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import cast

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.firmware import Firmware
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.am2.receiver import Delivery
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation

SHORT, MEDIUM, BULK, REPLY = 1, 2, 3, 4
TAG = 77
MAX_BULK = 4_000
"""Maximum bytes of a bulk message."""
BULK_SLOTS = 4
"""Slots for an endpoint's bulk messages in another's segment, one per credit."""

Identity = tuple[int, int, int]
"""Node, endpoint, serial number of a request."""


@dataclass
class Transcript:
    """Record of requests: how often each was handled and replied to, and why each was returned."""

    sent: list[Identity] = field(default_factory=list)
    handled: Counter[Identity] = field(default_factory=Counter)
    replied: Counter[Identity] = field(default_factory=Counter)
    returned: dict[Identity, Status] = field(default_factory=dict)
    replies_returned: int = 0
    delivered: Counter[Delivery] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unfinished: int = 0
    """Number of endpoints with requests in progress."""

    def on_delivery(self, delivery: Delivery) -> None:
        self.delivered[delivery] += 1

    def check(self) -> None:
        """Assert that each request was handled and replied to once or was returned; both is possible only if unreachable."""
        assert not self.wrong
        assert all(count == 1 for count in (*self.handled.values(), *self.replied.values(), *self.delivered.values()))
        for identity in self.sent:
            status = self.returned.get(identity)
            if status is None:
                assert self.handled[identity] == self.replied[identity] == 1, identity
            else:
                assert not self.replied[identity], identity
                assert status is Status.UNREACHABLE or not self.handled[identity], (identity, status)


def content(identity: Identity, size: int) -> bytes:
    node, endpoint, serial = identity
    return bytes([(node * 7 + endpoint * 31 + serial * 3 + index) & 0xFF for index in range(size)])


class ExchangeEndpoint:
    """Endpoint with its handlers and the task that sends its requests."""

    def __init__(
        self, endpoint: Endpoint, transcript: Transcript, all_names: list[EndpointName], requests: int, seed: int
    ) -> None:
        self.endpoint = endpoint
        self.transcript = transcript
        self.requests = requests
        self.rng = Random(seed * 1_000_003 + endpoint.name.node * 1_009 + endpoint.name.endpoint)
        self.max_medium = endpoint.library.max_medium
        endpoint.tag = TAG
        endpoint.segment = bytearray(MAX_BULK * (BULK_SLOTS * len(all_names) + 1))
        endpoint.error_handler = self.on_returned
        for number, handler in (
            (SHORT, self.on_short),
            (MEDIUM, self.on_data),
            (BULK, self.on_data),
            (REPLY, self.on_reply),
        ):
            endpoint.set_handler(number, handler)
        own_name = endpoint.name
        self.names = [
            name
            for name in all_names
            if name.node != own_name.node or len({peer_name.node for peer_name in all_names}) == 1
        ]
        self.first = all_names.index(own_name) * BULK_SLOTS
        self.last = MAX_BULK * BULK_SLOTS * len(all_names)
        self.bulk_in_flight: dict[int, tuple[int, int]] = {}  # serial -> (destination, slot there)
        self.open_requests = 0
        for index, name in enumerate(self.names):
            endpoint.map(index, name, TAG)

    def on_short(self, token: Token, serial: int) -> None:
        self.transcript.handled[*token.source, serial] += 1
        if serial % 3:  # the library returns a credit for the others
            token.reply(REPLY, serial)
        else:
            token.reply_medium(REPLY, b"", serial)

    def on_data(self, token: Token, data: memoryview, serial: int) -> None:
        identity = (*token.source, serial)
        self.transcript.handled[identity] += 1
        if data != content(identity, len(data)):
            self.transcript.wrong.append(f"{identity}: {len(data)} bytes differ from the sent ones")
        if serial % 2:
            token.reply(REPLY, serial)
        else:
            token.reply_bulk(REPLY, content(identity, serial % 3000), self.last, serial)

    def on_reply(self, token: Token, *arguments: object) -> None:
        serial = cast(int, arguments[-1])
        self.transcript.replied[*self.endpoint.name, serial] += 1
        self.open_requests -= 1
        self.bulk_in_flight.pop(serial, None)
        assert token.is_reply

    def on_returned(self, message: Returned) -> None:
        if message.is_reply:
            self.transcript.replies_returned += 1
            return
        self.bulk_in_flight.pop(message.arguments[0], None)
        self.transcript.returned[*self.endpoint.name, message.arguments[0]] = message.status
        self.open_requests -= 1

    def free_slot(self, peer_index: int) -> int:
        """Return a slot of a destination's segment without a bulk message in flight, -1 if there is none.
        Two messages in one slot would overwrite each other."""
        taken_slots = {slot for destination, slot in self.bulk_in_flight.values() if destination == peer_index}
        return next((index for index in range(BULK_SLOTS) if index not in taken_slots), -1)

    async def run(self, am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG002
        endpoint, rng, transcript = self.endpoint, self.rng, self.transcript
        for serial in range(self.requests):
            peer_index = rng.randrange(len(self.names))
            identity = (*endpoint.name, serial)
            transcript.sent.append(identity)
            self.open_requests += 1
            form = rng.choice((SHORT, SHORT, MEDIUM, BULK))
            if form == SHORT:
                await endpoint.request(peer_index, SHORT, serial)
            elif form == MEDIUM:
                size = rng.randrange(self.max_medium)
                await endpoint.request_medium(peer_index, MEDIUM, content(identity, size), serial)
            else:
                data = content(identity, rng.randrange(MAX_BULK))
                while (free_slot := self.free_slot(peer_index)) < 0:
                    await endpoint.wait()
                    await endpoint.poll()
                self.bulk_in_flight[serial] = (peer_index, free_slot)
                await endpoint.request_bulk(peer_index, BULK, data, (self.first + free_slot) * MAX_BULK, serial)
        while self.open_requests:
            await endpoint.wait()
            await endpoint.poll()
        transcript.unfinished -= 1
        while transcript.unfinished:
            await endpoint.poll()
            await node.sleep(1_000_000)


def start_exchange(
    simulation: Simulation, transcript: Transcript, endpoints: int, requests: int, seed: int = 1
) -> list[ExchangeEndpoint]:
    """Start endpoints on each node, each of which sends `requests` requests."""
    names = [EndpointName(node.number, number) for node in simulation.nodes.values() for number in range(endpoints)]
    exchange_endpoints = []
    for node in simulation.nodes.values():
        am = cast(ActiveMessages, node.agent.host)
        bundle = am.allocate_bundle()
        for _ in range(endpoints):
            exchange_endpoints.append(ExchangeEndpoint(bundle.allocate_endpoint(), transcript, names, requests, seed))
    transcript.unfinished = len(exchange_endpoints)
    for exchange_endpoint in exchange_endpoints:
        simulation.spawn(list(simulation.nodes)[exchange_endpoint.endpoint.name.node], exchange_endpoint.run)
    return exchange_endpoints


def total_counter(simulation: Simulation, name: str) -> int:
    """Return the sum of a counter over all NICs."""
    return sum(node.agent.firmware.counter_values()[name] for node in simulation.nodes.values())


def firmware(simulation: Simulation, node: str) -> Firmware:
    return cast(Firmware, simulation.nodes[node].agent.firmware)

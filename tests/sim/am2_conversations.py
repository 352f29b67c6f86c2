"""Endpoints that exchange active messages of all forms and record the outcome of every request.

Each endpoint has a task, as a program has threads: it sends requests to endpoints chosen by a seed, handles what
arrives, and runs until the requests of all endpoints have ended.
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

SHORT, MEDIUM, BULK, ANSWER = 1, 2, 3, 4
TAG = 77
ROOM = 4_000
"""Bytes of one bulk message, at most."""
PLACES = 4
"""For bulk messages of one endpoint in the segment of another: as many as it has credits."""

Identity = tuple[int, int, int]
"""Node, endpoint, serial number of a request."""


@dataclass
class Transcript:
    """Record of requests: how often each was handled and replied to, and why each was returned."""

    asked: list[Identity] = field(default_factory=list)
    handled: Counter[Identity] = field(default_factory=Counter)
    replied: Counter[Identity] = field(default_factory=Counter)
    returned: dict[Identity, Status] = field(default_factory=dict)
    replies_returned: int = 0
    delivered: Counter[Delivery] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    left: int = 0
    """Endpoints that have requests without an end."""

    def on_delivery(self, delivery: Delivery) -> None:
        self.delivered[delivery] += 1

    def check(self) -> None:
        """Check that each request was handled and replied to once, or was returned, and not certainly both."""
        assert not self.wrong
        assert all(count == 1 for count in (*self.handled.values(), *self.replied.values(), *self.delivered.values()))
        for identity in self.asked:
            status = self.returned.get(identity)
            if status is None:
                assert self.handled[identity] == self.replied[identity] == 1, identity
            else:
                assert not self.replied[identity], identity
                assert status is Status.UNREACHABLE or not self.handled[identity], (identity, status)


def content(identity: Identity, size: int) -> bytes:
    node, endpoint, serial = identity
    return bytes([(node * 7 + endpoint * 31 + serial * 3 + index) & 0xFF for index in range(size)])


class ConversingEndpoint:
    """Endpoint with its handlers and the task that sends its requests."""

    def __init__(
        self, endpoint: Endpoint, notes: Transcript, all_names: list[EndpointName], requests: int, seed: int
    ) -> None:
        self.endpoint = endpoint
        self.notes = notes
        self.requests = requests
        self.rng = Random(seed * 1_000_003 + endpoint.name.node * 1_009 + endpoint.name.endpoint)
        self.max_medium = endpoint.library.max_medium
        endpoint.tag = TAG
        endpoint.segment = bytearray(ROOM * (PLACES * len(all_names) + 1))
        endpoint.error_handler = self.on_returned
        for number, handler in (SHORT, self.short), (MEDIUM, self.data), (BULK, self.data), (ANSWER, self.answer):
            endpoint.set_handler(number, handler)
        own_name = endpoint.name
        self.names = [
            name
            for name in all_names
            if name.node != own_name.node or len({peer_name.node for peer_name in all_names}) == 1
        ]
        self.first = all_names.index(own_name) * PLACES
        self.last = ROOM * PLACES * len(all_names)
        self.writing: dict[int, tuple[int, int]] = {}  # bulk messages: destination, and slot there
        self.open = 0
        for index, name in enumerate(self.names):
            endpoint.map(index, name, TAG)

    def short(self, token: Token, serial: int) -> None:
        self.notes.handled[*token.source, serial] += 1
        if serial % 3:  # the library sends a credit back for the others
            token.reply(ANSWER, serial)
        else:
            token.reply_medium(ANSWER, b"", serial)

    def data(self, token: Token, data: memoryview, serial: int) -> None:
        identity = (*token.source, serial)
        self.notes.handled[identity] += 1
        if data != content(identity, len(data)):
            self.notes.wrong.append(f"{identity}: {len(data)} bytes are not what was sent")
        if serial % 2:
            token.reply(ANSWER, serial)
        else:
            token.reply_bulk(ANSWER, content(identity, serial % 3000), self.last, serial)

    def answer(self, token: Token, *arguments: object) -> None:
        serial = cast(int, arguments[-1])
        self.notes.replied[*self.endpoint.name, serial] += 1
        self.open -= 1
        self.writing.pop(serial, None)
        assert token.is_reply

    def on_returned(self, message: Returned) -> None:
        if message.is_reply:
            self.notes.replies_returned += 1
            return
        self.writing.pop(message.arguments[0], None)
        self.notes.returned[*self.endpoint.name, message.arguments[0]] = message.status
        self.open -= 1

    def free_slot(self, peer_index: int) -> int:
        """Return a slot of a destination's segment without a bulk message in flight, -1 if there is none: two would
        overwrite each other."""
        taken_slots = {slot for destination, slot in self.writing.values() if destination == peer_index}
        return next((index for index in range(PLACES) if index not in taken_slots), -1)

    async def run(self, am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG002
        endpoint, rng, notes = self.endpoint, self.rng, self.notes
        for serial in range(self.requests):
            peer_index = rng.randrange(len(self.names))
            identity = (*endpoint.name, serial)
            notes.asked.append(identity)
            self.open += 1
            form = rng.choice((SHORT, SHORT, MEDIUM, BULK))
            if form == SHORT:
                await endpoint.request(peer_index, SHORT, serial)
            elif form == MEDIUM:
                size = rng.randrange(self.max_medium)
                await endpoint.request_medium(peer_index, MEDIUM, content(identity, size), serial)
            else:
                data = content(identity, rng.randrange(ROOM))
                while (free_slot := self.free_slot(peer_index)) < 0:
                    await endpoint.wait()
                    await endpoint.poll()
                self.writing[serial] = (peer_index, free_slot)
                await endpoint.request_bulk(peer_index, BULK, data, (self.first + free_slot) * ROOM, serial)
        while self.open:
            await endpoint.wait()
            await endpoint.poll()
        notes.left -= 1
        while notes.left:
            await endpoint.poll()
            await node.sleep(1_000_000)


def converse(
    simulation: Simulation, notes: Transcript, endpoints: int, requests: int, seed: int = 1
) -> list[ConversingEndpoint]:
    """Start `endpoints` endpoints on each node, each of which sends `requests` requests."""
    names = [EndpointName(node.number, number) for node in simulation.nodes.values() for number in range(endpoints)]
    talkers = []
    for node in simulation.nodes.values():
        am = cast(ActiveMessages, node.agent.host)
        bundle = am.allocate_bundle()
        for _ in range(endpoints):
            talkers.append(ConversingEndpoint(bundle.allocate_endpoint(), notes, names, requests, seed))
    notes.left = len(talkers)
    for talker in talkers:
        simulation.spawn(list(simulation.nodes)[talker.endpoint.name.node], talker.run)
    return talkers


def total_counter(simulation: Simulation, name: str) -> int:
    """All NICs' together."""
    return sum(node.agent.firmware.counter_values()[name] for node in simulation.nodes.values())


def firmware(simulation: Simulation, node: str) -> Firmware:
    return cast(Firmware, simulation.nodes[node].agent.firmware)

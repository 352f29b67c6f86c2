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
        """Each request was handled once and replied to once, or it came back; never both for certain."""
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
    return bytes([(node * 7 + endpoint * 31 + serial * 3 + place) & 0xFF for place in range(size)])


class ConversingEndpoint:
    """Endpoint with its handlers and the task that sends its requests."""

    def __init__(
        self, endpoint: Endpoint, notes: Transcript, everybody: list[EndpointName], requests: int, seed: int
    ) -> None:
        self.endpoint = endpoint
        self.notes = notes
        self.requests = requests
        self.chance = Random(seed * 1_000_003 + endpoint.name.node * 1_009 + endpoint.name.endpoint)
        self.max_medium = endpoint.library.max_medium
        endpoint.tag = TAG
        endpoint.segment = bytearray(ROOM * (PLACES * len(everybody) + 1))
        endpoint.error_handler = self.came_back
        for number, handler in (SHORT, self.short), (MEDIUM, self.data), (BULK, self.data), (ANSWER, self.answer):
            endpoint.set_handler(number, handler)
        own = endpoint.name
        self.names = [name for name in everybody if name.node != own.node or len({one.node for one in everybody}) == 1]
        self.first = everybody.index(own) * PLACES
        self.last = ROOM * PLACES * len(everybody)
        self.writing: dict[int, tuple[int, int]] = {}  # bulk messages: to whom, and which of the places there
        self.open = 0
        for place, name in enumerate(self.names):
            endpoint.map(place, name, TAG)

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

    def answer(self, token: Token, *about: object) -> None:
        serial = cast(int, about[-1])
        self.notes.replied[*self.endpoint.name, serial] += 1
        self.open -= 1
        self.writing.pop(serial, None)
        assert token.is_reply

    def came_back(self, returned: Returned) -> None:
        if returned.is_reply:
            self.notes.replies_returned += 1
            return
        self.writing.pop(returned.arguments[0], None)
        self.notes.returned[*self.endpoint.name, returned.arguments[0]] = returned.status
        self.open -= 1

    def free_slot(self, place: int) -> int:
        """Return a slot of a destination's segment without a bulk message in flight, -1 if there is none: two would
        overwrite each other."""
        taken = {one for to, one in self.writing.values() if to == place}
        return next((index for index in range(PLACES) if index not in taken), -1)

    async def run(self, am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG002
        endpoint, chance, notes = self.endpoint, self.chance, self.notes
        for serial in range(self.requests):
            place = chance.randrange(len(self.names))
            identity = (*endpoint.name, serial)
            notes.asked.append(identity)
            self.open += 1
            form = chance.choice((SHORT, SHORT, MEDIUM, BULK))
            if form == SHORT:
                await endpoint.request(place, SHORT, serial)
            elif form == MEDIUM:
                size = chance.randrange(self.max_medium)
                await endpoint.request_medium(place, MEDIUM, content(identity, size), serial)
            else:
                data = content(identity, chance.randrange(ROOM))
                while (taken := self.free_slot(place)) < 0:
                    await endpoint.wait()
                    await endpoint.poll()
                self.writing[serial] = (place, taken)
                await endpoint.request_bulk(place, BULK, data, (self.first + taken) * ROOM, serial)
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

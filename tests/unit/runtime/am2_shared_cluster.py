"""Shared NICs of AM-II and simulated host processes, in one process and in random order.

A host has what a process has: a region, through which its library and the NIC's firmware refer to each other by numbers
only. Some hosts run programs that exchange requests and check their outcomes.
"""

from __future__ import annotations

import os
import random
import socket
from collections import Counter, deque
from dataclasses import dataclass
from typing import cast

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.am2.receiver import Delivery
from protocols.am2.settings import MILLISECOND, Settings
from protocols.am2.split_driver import Nic, split_driver
from protocols.core.firmware import Adapter
from protocols.core.split_memory import HostSlot, SplitDriver
from testbed.kernel.filesystem import make_sealed
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.functions import AttachedHost, Function, Wire
from testbed.runtime.shared.heap import Heap
from testbed.runtime.shared.region import Layout, Region
from testbed.spec.placement import address_of

HEAP = 4 << 20
SEGMENT = 400_000
REPLY = 3_000
"""Bytes of a bulk reply."""
WORDS, DATA, ANSWER, ANSWER_DATA = 1, 2, 3, 4
SHORT, MEDIUM, BULK = range(3)
_TAKEN = 8


class Nobody:
    """A wire that takes everything."""

    @staticmethod
    def send(_frame: bytes) -> None: ...


def attached(split_driver: SplitDriver, heap: int = HEAP) -> AttachedHost:
    """Return an attachment as a host process's."""
    layout = Layout(1 << (split_driver.max_in_flight - 1).bit_length(), split_driver.descriptors, heap)
    memory = make_sealed("side by side", layout.size)
    region = Region(memory, layout)
    os.close(memory)
    first, second = socket.socketpair()
    second.close()
    reading, writing = os.pipe2(os.O_NONBLOCK)
    os.close(reading)
    return AttachedHost(region, first, os.getpid(), os.pidfd_open(os.getpid()), os.eventfd(0), writing)


def content(serial: int, size: int) -> bytes:
    return random.Random(serial).randbytes(size)


@dataclass
class RequestFate:
    """The fate of a request. source, sink: host and endpoint there. offset, reply_offset: in the segments of both, of
    places that no other request has. number: as its endpoint counts."""

    source: Host
    origin: Endpoint
    sink: Host
    endpoint: EndpointName
    form: int
    size: int
    offset: int
    reply_offset: int
    number: int = 0
    handled: int = 0
    replied: int = 0
    returned: Status | None = None
    reply_returned: Status | None = None


class Host:
    """A process with a library. Is its `HostActions`. alive: it is attached."""

    def __init__(self, cluster: Cluster, node: int, place: int, turn: int) -> None:
        self.cluster = cluster
        self.node = node
        self.place = place
        self.alive = True
        self.rung: deque[int] = deque()
        function = cluster.functions[node]
        self.attached = attached(cluster.split_driver)
        self.heap = Heap(self.attached.region.heap)
        self.free = self.heap.free
        self.am = cast(
            "ActiveMessages",
            cluster.split_driver.host(
                function.nic.adapter,
                self,
                self.heap,
                self.attached.region.descriptors,
                HostSlot(place, cluster.places, turn),
            ),
        )
        function.attach(cluster.now, self.attached, place)
        self.bundle = self.am.allocate_bundle()
        self.names: dict[tuple[EndpointName, int], tuple[Endpoint, int]] = {}

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002
        self.rung.append(index)

    def ring(self, most: int) -> None:
        """The NIC takes doorbells."""
        for _ in range(min(most, len(self.rung))):
            self.attached.on_doorbell(self.cluster.now, self.rung.popleft())

    def look(self, most: int) -> None:
        """The process takes completions, and polls."""
        completions = self.attached.region.completions
        head, tail = completions.words[16], completions.words[0]
        for place in range(head, min(head + most, tail)):
            completions.words[16] = place + 1
            self.am.on_completion(completions.numbers[place % len(completions.numbers)])
        for endpoint in self.am.endpoints:
            endpoint.handle(4)

    @property
    def is_quiet(self) -> bool:
        words = self.attached.region.completions.words
        return not self.rung and words[0] == words[16]

    def talker(self) -> Endpoint:
        """An endpoint with handlers."""
        endpoint = self.bundle.allocate_endpoint()
        endpoint.tag = 1000 + endpoint.name.endpoint
        endpoint.segment = bytearray(SEGMENT)
        endpoint.error_handler = self.came_back
        endpoint.set_handler(WORDS, self.words)
        endpoint.set_handler(DATA, self.data)
        endpoint.set_handler(ANSWER, self.answer)
        endpoint.set_handler(ANSWER_DATA, self.answer_data)
        return endpoint

    def ask(self, serial: int, course: RequestFate) -> bool:
        """Send a request, if that can be."""
        endpoint = course.origin
        key = (course.endpoint, endpoint.name.endpoint)
        if key not in self.names:
            self.names[key] = endpoint, endpoint.map_any(course.endpoint, 1000 + course.endpoint.endpoint)
        place = self.names[key][1]
        if endpoint.outbox.page is None:
            self.am.driver.fault(endpoint)
            return False
        data = content(serial, course.size)
        if course.form == SHORT:
            sent = endpoint.try_request(place, WORDS, serial, serial ^ 0xFFFF)
        elif course.form == MEDIUM:
            sent = endpoint.try_request_medium(place, DATA, data, serial)
        else:
            sent = endpoint.try_request_bulk(place, DATA, data, course.offset, serial)
        if sent:
            course.number = endpoint.outbox.last_request
        return sent

    # Handlers.

    def _course(self, token: Token, serial: int) -> RequestFate:
        course = self.cluster.courses[serial]
        course.handled += 1
        assert course.endpoint == token.endpoint.name, f"request {serial} has come to {token.endpoint.name}"
        assert course.origin.name == token.source
        return course

    def words(self, token: Token, serial: int, odd: int) -> None:
        assert odd == serial ^ 0xFFFF
        self._course(token, serial)
        if serial % 3:
            token.reply(ANSWER, serial)

    def data(self, token: Token, data: memoryview, serial: int) -> None:
        course = self._course(token, serial)
        assert data == content(serial, course.size), f"request {serial}: {len(data)} bytes are not what was sent"
        if serial % 3 == 1:
            token.reply_medium(ANSWER_DATA, content(~serial, 300), serial)
        elif serial % 3 == 2:
            token.reply_bulk(ANSWER_DATA, content(~serial, REPLY), course.reply_offset, serial)

    def answer(self, token: Token, serial: int) -> None:
        course = self.cluster.courses[serial]
        course.replied += 1
        assert course.origin is token.endpoint
        assert token.source == course.endpoint

    def answer_data(self, token: Token, data: memoryview, serial: int) -> None:
        assert data == content(~serial, len(data)), f"the reply to request {serial} is not what was sent"
        self.answer(token, serial)

    def came_back(self, returned: Returned) -> None:
        course = self.cluster.courses[returned.arguments[0]]
        if returned.is_reply:
            course.reply_returned = returned.status
            return
        assert course.returned is None
        course.returned = returned.status


class Cluster:
    """Nodes with a shared NIC each. lost, bent: one of this many frames is dropped or corrupted; 0: none. courses: of
    all requests."""

    def __init__(
        self, chance: random.Random, settings: Settings, *, nodes: int = 2, lost: int = 0, bent: int = 0
    ) -> None:
        self.chance = chance
        self.settings = settings
        self.lost = lost
        self.bent = bent
        self.now = 0
        self.places = settings.max_hosts
        self.delivered: set[Delivery] = set()
        self.split_driver = split_driver(settings, on_delivery=self.delivered.add)
        addresses = tuple(address_of(b"\x02\0\0\0\0\1", number) for number in range(nodes))
        self.wire = Wire(VethPort(cast("FrameSocket", Nobody())), frozenset(addresses))
        self.violators: list[AttachedHost] = []
        self.functions = [
            Function(Adapter(number, addresses), self.wire, self.split_driver, self.violators)
            for number in range(nodes)
        ]
        self.by_address = dict(zip(addresses, self.functions, strict=True))
        self.hosts: list[Host] = []
        self.courses: dict[int, RequestFate] = {}
        self.turns: Counter[tuple[int, int]] = Counter()
        self._used: Counter[EndpointName] = Counter()  # of segments

    def nic(self, node: int) -> Nic:
        nic = self.functions[node].nic
        assert isinstance(nic, Nic)
        return nic

    def begin(self, node: int, place: int) -> Host:
        self.turns[node, place] += 1
        host = Host(self, node, place, self.turns[node, place])
        self.hosts.append(host)
        return host

    def detach(self, host: Host) -> None:
        """Detach a host that has died."""
        host.alive = False
        host.rung.clear()
        self.hosts.remove(host)
        self.functions[host.node].detach(self.now, host.attached, 2)

    def draw(self, serial: int) -> None:
        """A request, from anyone to anyone."""
        chance = self.chance
        source, sink = chance.choice(self.hosts), chance.choice(self.hosts)
        origin, endpoint = chance.choice(source.am.endpoints), chance.choice(sink.am.endpoints)
        form = chance.choice([SHORT, SHORT, MEDIUM, BULK])
        size = {SHORT: 0, MEDIUM: chance.randrange(512), BULK: chance.choice([0, 900, 5_000, 20_000])}[form]
        places = self._place(endpoint.name, size), self._place(origin.name, REPLY)
        self.courses[serial] = RequestFate(source, origin, sink, endpoint.name, form, size, *places)

    def _place(self, name: EndpointName, size: int) -> int:
        begin = self._used[name]
        self._used[name] += size
        assert begin + size <= SEGMENT
        return begin

    def carry(self, most: int) -> None:
        """Deliver up to `most` frames, some of them lost or corrupted."""
        wire, chance = self.wire, self.chance
        wire.flush()
        for _ in range(min(most, len(wire.local))):
            frame = bytes(wire.local.popleft())
            if self.lost and not chance.randrange(self.lost):
                continue
            if self.bent and not chance.randrange(self.bent):
                place = chance.randrange(len(frame))
                frame = frame[:place] + chance.randbytes(1) + frame[place + 1 :]
            to = self.by_address.get(frame[:6])
            if to is not None:
                to.nic.firmware.receive(self.now, frame)

    def elapse(self, span: int) -> None:
        self.now += span
        for function in self.functions:
            firmware = function.nic.firmware
            if firmware.deadline is not None and firmware.deadline <= self.now:
                for _ in range(4):  # what one does may be a reason for another
                    firmware.on_timer(self.now)
                deadline = firmware.deadline  # else the agent would do nothing but this
                assert deadline is None or deadline > self.now, firmware.pending_work()

    def turn(self) -> None:
        """Perform one random step of a random host."""
        chance = self.chance
        self.carry(chance.randrange(12))
        if self.hosts:
            host = chance.choice(self.hosts)
            if chance.randrange(2):
                host.ring(1 + chance.randrange(_TAKEN))
            else:
                host.look(1 + chance.randrange(_TAKEN))
        if not chance.randrange(6):
            self.elapse(chance.randrange(2 * MILLISECOND))

    def all_turn(self) -> None:
        """Perform a step of each host and let some time pass."""
        for host in self.hosts.copy():
            host.ring(64)
            self.carry(64)
            host.look(64)
        self.elapse(self.chance.randrange(2 * MILLISECOND))

    @property
    def is_quiet(self) -> bool:
        return not self.wire.local and all(host.is_quiet for host in self.hosts)

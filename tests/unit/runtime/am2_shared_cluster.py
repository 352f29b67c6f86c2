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


class NullWire:
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

    def __init__(self, cluster: Cluster, node: int, slot: int, incarnation: int) -> None:
        self.cluster = cluster
        self.node = node
        self.place = slot
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
                HostSlot(slot, cluster.places, incarnation),
            ),
        )
        function.attach(cluster.now, self.attached, slot)
        self.bundle = self.am.allocate_bundle()
        self.names: dict[tuple[EndpointName, int], tuple[Endpoint, int]] = {}

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002
        self.rung.append(index)

    def ring(self, maximum: int) -> None:
        """The NIC takes doorbells."""
        for _ in range(min(maximum, len(self.rung))):
            self.attached.on_doorbell(self.cluster.now, self.rung.popleft())

    def look(self, maximum: int) -> None:
        """The process takes completions, and polls."""
        completions = self.attached.region.completions
        head, tail = completions.words[16], completions.words[0]
        for index in range(head, min(head + maximum, tail)):
            completions.words[16] = index + 1
            self.am.on_completion(completions.numbers[index % len(completions.numbers)])
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
        endpoint.error_handler = self.on_returned
        endpoint.set_handler(WORDS, self.words)
        endpoint.set_handler(DATA, self.data)
        endpoint.set_handler(ANSWER, self.answer)
        endpoint.set_handler(ANSWER_DATA, self.answer_data)
        return endpoint

    def ask(self, serial: int, fate: RequestFate) -> bool:
        """Send a request, if that can be."""
        endpoint = fate.origin
        key = (fate.endpoint, endpoint.name.endpoint)
        if key not in self.names:
            self.names[key] = endpoint, endpoint.map_any(fate.endpoint, 1000 + fate.endpoint.endpoint)
        translation_index = self.names[key][1]
        if endpoint.outbox.page is None:
            self.am.driver.fault(endpoint)
            return False
        data = content(serial, fate.size)
        if fate.form == SHORT:
            is_sent = endpoint.try_request(translation_index, WORDS, serial, serial ^ 0xFFFF)
        elif fate.form == MEDIUM:
            is_sent = endpoint.try_request_medium(translation_index, DATA, data, serial)
        else:
            is_sent = endpoint.try_request_bulk(translation_index, DATA, data, fate.offset, serial)
        if is_sent:
            fate.number = endpoint.outbox.last_request
        return is_sent

    # Handlers.

    def _course(self, token: Token, serial: int) -> RequestFate:
        fate = self.cluster.fates[serial]
        fate.handled += 1
        assert fate.endpoint == token.endpoint.name, f"request {serial} has arrived at {token.endpoint.name}"
        assert fate.origin.name == token.source
        return fate

    def words(self, token: Token, serial: int, complement: int) -> None:
        assert complement == serial ^ 0xFFFF
        self._course(token, serial)
        if serial % 3:
            token.reply(ANSWER, serial)

    def data(self, token: Token, data: memoryview, serial: int) -> None:
        fate = self._course(token, serial)
        assert data == content(serial, fate.size), f"request {serial}: {len(data)} bytes are not what was sent"
        if serial % 3 == 1:
            token.reply_medium(ANSWER_DATA, content(~serial, 300), serial)
        elif serial % 3 == 2:
            token.reply_bulk(ANSWER_DATA, content(~serial, REPLY), fate.reply_offset, serial)

    def answer(self, token: Token, serial: int) -> None:
        fate = self.cluster.fates[serial]
        fate.replied += 1
        assert fate.origin is token.endpoint
        assert token.source == fate.endpoint

    def answer_data(self, token: Token, data: memoryview, serial: int) -> None:
        assert data == content(~serial, len(data)), f"the reply to request {serial} is not what was sent"
        self.answer(token, serial)

    def on_returned(self, message: Returned) -> None:
        fate = self.cluster.fates[message.arguments[0]]
        if message.is_reply:
            fate.reply_returned = message.status
            return
        assert fate.returned is None
        fate.returned = message.status


class Cluster:
    """Nodes with a shared NIC each. lost, bent: one of this many frames is dropped or corrupted; 0: none. fates: of
    all requests."""

    def __init__(
        self, chance: random.Random, settings: Settings, *, nodes: int = 2, lost: int = 0, bent: int = 0
    ) -> None:
        self.rng = chance
        self.settings = settings
        self.lost = lost
        self.bent = bent
        self.now = 0
        self.places = settings.max_hosts
        self.delivered: set[Delivery] = set()
        self.split_driver = split_driver(settings, on_delivery=self.delivered.add)
        addresses = tuple(address_of(b"\x02\0\0\0\0\1", number) for number in range(nodes))
        self.wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(addresses))
        self.violators: list[AttachedHost] = []
        self.functions = [
            Function(Adapter(number, addresses), self.wire, self.split_driver, self.violators)
            for number in range(nodes)
        ]
        self.by_address = dict(zip(addresses, self.functions, strict=True))
        self.hosts: list[Host] = []
        self.fates: dict[int, RequestFate] = {}
        self.turns: Counter[tuple[int, int]] = Counter()
        self._used: Counter[EndpointName] = Counter()  # of segments

    def nic(self, node: int) -> Nic:
        nic = self.functions[node].nic
        assert isinstance(nic, Nic)
        return nic

    def begin(self, node: int, slot: int) -> Host:
        self.turns[node, slot] += 1
        host = Host(self, node, slot, self.turns[node, slot])
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
        rng = self.rng
        source, destination = rng.choice(self.hosts), rng.choice(self.hosts)
        origin, endpoint = rng.choice(source.am.endpoints), rng.choice(destination.am.endpoints)
        form = rng.choice([SHORT, SHORT, MEDIUM, BULK])
        size = {SHORT: 0, MEDIUM: rng.randrange(512), BULK: rng.choice([0, 900, 5_000, 20_000])}[form]
        offsets = self._place(endpoint.name, size), self._place(origin.name, REPLY)
        self.fates[serial] = RequestFate(source, origin, destination, endpoint.name, form, size, *offsets)

    def _place(self, name: EndpointName, size: int) -> int:
        start = self._used[name]
        self._used[name] += size
        assert start + size <= SEGMENT
        return start

    def carry(self, maximum: int) -> None:
        """Deliver up to `maximum` frames, some of them lost or corrupted."""
        wire, rng = self.wire, self.rng
        wire.flush()
        for _ in range(min(maximum, len(wire.local))):
            frame = bytes(wire.local.popleft())
            if self.lost and not rng.randrange(self.lost):
                continue
            if self.bent and not rng.randrange(self.bent):
                position = rng.randrange(len(frame))
                frame = frame[:position] + rng.randbytes(1) + frame[position + 1 :]
            destination = self.by_address.get(frame[:6])
            if destination is not None:
                destination.nic.firmware.receive(self.now, frame)

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
        rng = self.rng
        self.carry(rng.randrange(12))
        if self.hosts:
            host = rng.choice(self.hosts)
            if rng.randrange(2):
                host.ring(1 + rng.randrange(_TAKEN))
            else:
                host.look(1 + rng.randrange(_TAKEN))
        if not rng.randrange(6):
            self.elapse(rng.randrange(2 * MILLISECOND))

    def all_turn(self) -> None:
        """Perform a step of each host and let some time pass."""
        for host in self.hosts.copy():
            host.ring(64)
            self.carry(64)
            host.look(64)
        self.elapse(self.rng.randrange(2 * MILLISECOND))

    @property
    def is_quiet(self) -> bool:
        return not self.wire.local and all(host.is_quiet for host in self.hosts)

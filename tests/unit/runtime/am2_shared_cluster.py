"""Shared AM-II NICs and simulated host processes, which a test runs in one process in random order.

As a host process does, a host has a region, through which its library and the firmware exchange numbers only. Hosts send
each other requests and check their outcomes.
"""

from __future__ import annotations

import random
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
from protocols.core.split_memory import HostSlot
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.functions import AttachedHost, Function, Wire
from testbed.runtime.shared.heap import Heap
from testbed.spec.placement import address_of
from tests.unit.runtime.attached_hosts import HEAD, TAIL, NullWire, attached_host

HEAP = 4 << 20
SEGMENT = 400_000
REPLY = 3_000
"""Size of a bulk reply, bytes."""
WORDS_HANDLER, DATA_HANDLER, REPLY_HANDLER, REPLY_DATA_HANDLER = 1, 2, 3, 4
SHORT, MEDIUM, BULK = range(3)
_MAX_BATCH = 8


def content(serial: int, size: int) -> bytes:
    return random.Random(serial).randbytes(size)


@dataclass
class RequestFate:
    """Fate of a request. offset, reply_offset: in the segments of sink and source, of ranges used by this request only.
    number: its sequence number at the sending endpoint."""

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
    """Host process with its library, whose `HostActions` it implements. alive: still attached."""

    def __init__(self, cluster: Cluster, node: int, slot: int, incarnation: int) -> None:
        self.cluster = cluster
        self.node = node
        self.slot = slot
        self.alive = True
        self.doorbells: deque[int] = deque()
        function = cluster.functions[node]
        self.attached = attached_host(cluster.split_driver, HEAP)
        self.heap = Heap(self.attached.region.heap)
        self.initial_free = self.heap.free
        self.am = cast(
            "ActiveMessages",
            cluster.split_driver.host(
                function.nic.adapter,
                self,
                self.heap,
                self.attached.region.descriptors,
                HostSlot(slot, cluster.slots_per_node, incarnation),
            ),
        )
        function.attach(cluster.now, self.attached, slot)
        self.bundle = self.am.allocate_bundle()
        self.names: dict[tuple[EndpointName, int], tuple[Endpoint, int]] = {}

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002
        self.doorbells.append(index)

    def take_doorbells(self, maximum: int) -> None:
        """Let the NIC handle up to `maximum` doorbells."""
        for _ in range(min(maximum, len(self.doorbells))):
            self.attached.on_doorbell(self.cluster.now, self.doorbells.popleft())

    def take_completions(self, maximum: int) -> None:
        """Let the process handle up to `maximum` completions, and poll."""
        completions = self.attached.region.completions
        head, tail = completions.words[HEAD], completions.words[TAIL]
        for index in range(head, min(head + maximum, tail)):
            completions.words[HEAD] = index + 1
            self.am.on_completion(completions.numbers[index % len(completions.numbers)])
        for endpoint in self.am.endpoints:
            endpoint.handle(4)

    @property
    def is_quiet(self) -> bool:
        words = self.attached.region.completions.words
        return not self.doorbells and words[TAIL] == words[HEAD]

    def add_endpoint(self) -> Endpoint:
        """Allocate an endpoint with handlers."""
        endpoint = self.bundle.allocate_endpoint()
        endpoint.tag = 1000 + endpoint.name.endpoint
        endpoint.segment = bytearray(SEGMENT)
        endpoint.error_handler = self.on_returned
        endpoint.set_handler(WORDS_HANDLER, self.on_words)
        endpoint.set_handler(DATA_HANDLER, self.on_data)
        endpoint.set_handler(REPLY_HANDLER, self.on_reply)
        endpoint.set_handler(REPLY_DATA_HANDLER, self.on_reply_data)
        return endpoint

    def try_send(self, serial: int, fate: RequestFate) -> bool:
        """Try to send a request; return whether it was sent."""
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
            is_sent = endpoint.try_request(translation_index, WORDS_HANDLER, serial, serial ^ 0xFFFF)
        elif fate.form == MEDIUM:
            is_sent = endpoint.try_request_medium(translation_index, DATA_HANDLER, data, serial)
        else:
            is_sent = endpoint.try_request_bulk(translation_index, DATA_HANDLER, data, fate.offset, serial)
        if is_sent:
            fate.number = endpoint.outbox.last_request
        return is_sent

    # Handlers

    def _record_handled(self, token: Token, serial: int) -> RequestFate:
        fate = self.cluster.fates[serial]
        fate.handled += 1
        assert fate.endpoint == token.endpoint.name, f"request {serial} arrived at {token.endpoint.name}"
        assert fate.origin.name == token.source
        return fate

    def on_words(self, token: Token, serial: int, complement: int) -> None:
        assert complement == serial ^ 0xFFFF
        self._record_handled(token, serial)
        if serial % 3:
            token.reply(REPLY_HANDLER, serial)

    def on_data(self, token: Token, data: memoryview, serial: int) -> None:
        fate = self._record_handled(token, serial)
        assert data == content(serial, fate.size), f"request {serial}: {len(data)} bytes differ from those sent"
        if serial % 3 == 1:
            token.reply_medium(REPLY_DATA_HANDLER, content(~serial, 300), serial)
        elif serial % 3 == 2:
            token.reply_bulk(REPLY_DATA_HANDLER, content(~serial, REPLY), fate.reply_offset, serial)

    def on_reply(self, token: Token, serial: int) -> None:
        fate = self.cluster.fates[serial]
        fate.replied += 1
        assert fate.origin is token.endpoint
        assert token.source == fate.endpoint

    def on_reply_data(self, token: Token, data: memoryview, serial: int) -> None:
        assert data == content(~serial, len(data)), f"the reply to request {serial} differs from the one sent"
        self.on_reply(token, serial)

    def on_returned(self, message: Returned) -> None:
        fate = self.cluster.fates[message.arguments[0]]
        if message.is_reply:
            fate.reply_returned = message.status
            return
        assert fate.returned is None
        fate.returned = message.status


class Cluster:
    """Nodes with a shared NIC each. loss, corruption: one of that many frames is lost or corrupted; 0: none."""

    def __init__(
        self, rng: random.Random, settings: Settings, *, nodes: int = 2, loss: int = 0, corruption: int = 0
    ) -> None:
        self.rng = rng
        self.settings = settings
        self.loss = loss
        self.corruption = corruption
        self.now = 0
        self.slots_per_node = settings.max_hosts
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
        self.incarnations: Counter[tuple[int, int]] = Counter()
        self._allocated: Counter[EndpointName] = Counter()  # bytes of each segment

    def nic(self, node: int) -> Nic:
        nic = self.functions[node].nic
        assert isinstance(nic, Nic)
        return nic

    def add_host(self, node: int, slot: int) -> Host:
        self.incarnations[node, slot] += 1
        host = Host(self, node, slot, self.incarnations[node, slot])
        self.hosts.append(host)
        return host

    def detach(self, host: Host) -> None:
        """Detach a host that has died."""
        host.alive = False
        host.doorbells.clear()
        self.hosts.remove(host)
        self.functions[host.node].detach(self.now, host.attached, 2)

    def add_request(self, serial: int) -> None:
        """Draw a request between two random endpoints."""
        rng = self.rng
        source, destination = rng.choice(self.hosts), rng.choice(self.hosts)
        origin, endpoint = rng.choice(source.am.endpoints), rng.choice(destination.am.endpoints)
        form = rng.choice([SHORT, SHORT, MEDIUM, BULK])
        size = {SHORT: 0, MEDIUM: rng.randrange(512), BULK: rng.choice([0, 900, 5_000, 20_000])}[form]
        offsets = self._allocate(endpoint.name, size), self._allocate(origin.name, REPLY)
        self.fates[serial] = RequestFate(source, origin, destination, endpoint.name, form, size, *offsets)

    def _allocate(self, name: EndpointName, size: int) -> int:
        start = self._allocated[name]
        self._allocated[name] += size
        assert start + size <= SEGMENT
        return start

    def deliver_frames(self, maximum: int) -> None:
        """Deliver up to `maximum` frames, some of them lost or corrupted."""
        wire, rng = self.wire, self.rng
        wire.flush()
        for _ in range(min(maximum, len(wire.local))):
            frame = bytes(wire.local.popleft())
            if self.loss and not rng.randrange(self.loss):
                continue
            if self.corruption and not rng.randrange(self.corruption):
                position = rng.randrange(len(frame))
                frame = frame[:position] + rng.randbytes(1) + frame[position + 1 :]
            destination = self.by_address.get(frame[:6])
            if destination is not None:
                destination.nic.firmware.receive(self.now, frame)

    def advance(self, span: int) -> None:
        self.now += span
        for function in self.functions:
            firmware = function.nic.firmware
            if firmware.deadline is not None and firmware.deadline <= self.now:
                for _ in range(4):  # one expired timer may set the next
                    firmware.on_timer(self.now)
                deadline = firmware.deadline  # otherwise the agent would spin on it
                assert deadline is None or deadline > self.now, firmware.pending_work()

    def step(self) -> None:
        """Perform one random step of a random host."""
        rng = self.rng
        self.deliver_frames(rng.randrange(12))
        if self.hosts:
            host = rng.choice(self.hosts)
            if rng.randrange(2):
                host.take_doorbells(1 + rng.randrange(_MAX_BATCH))
            else:
                host.take_completions(1 + rng.randrange(_MAX_BATCH))
        if not rng.randrange(6):
            self.advance(rng.randrange(2 * MILLISECOND))

    def step_all(self) -> None:
        """Perform a step of each host and let some time pass."""
        for host in self.hosts.copy():
            host.take_doorbells(64)
            self.deliver_frames(64)
            host.take_completions(64)
        self.advance(self.rng.randrange(2 * MILLISECOND))

    @property
    def is_quiet(self) -> bool:
        return not self.wire.local and all(host.is_quiet for host in self.hosts)

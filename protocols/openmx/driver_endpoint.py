"""The driver's state, of one endpoint and of the NIC, and the delivery of events to endpoints.

A message to an endpoint of the same node needs no frame: the sender's driver writes the event into the ring of that endpoint
(`omx_shared.c`; `local_messages` makes the events).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.core.announcements import Announcements
from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.host_work import ANYWHERE, HostWork, host_work, node_actions
from protocols.core.memory import DmaMemory
from protocols.core.timers import Timers
from protocols.openmx import states
from protocols.openmx.codec import (
    NACK_TYPE_BAD_SESSION,
    NACK_TYPE_ENDPOINT_CLOSED,
    TYPE_CONNECT,
    TYPE_NACK_LIB,
    TYPE_TRUC,
)
from protocols.openmx.codec_interface import Codec
from protocols.openmx.counters import Counters
from protocols.openmx.endpoint_memory import Event, ReceiveRing
from protocols.openmx.mx_names import MAX_FRAGMENT, seqnum_after
from protocols.openmx.settings import Settings

DRIVER: Final = "driver"
"""Work on the host (`protocols.core.host_work`): the driver makes a frame and passes it to the NIC."""
LOOKUP: Final = "lookup"
"""Work on the host: the receive handler finds a frame's endpoint and writes the event."""
STATE_SIZE: Final = 512
"""Bytes of an endpoint's state that a receive handler writes and the next one reads: eight cache lines. Our count."""

_OVERHEAD: Final = 2 + 32 + 4
"""Maximum bytes of Open-MX headers and CRC-32 in a data frame."""
_MAX_EARLY: Final = 1024
"""Maximum number of connection requests kept for endpoints that are not open yet."""


Connection = tuple[int, int, int]
"""Local endpoint, node of the partner, endpoint of the partner."""


class Region(NamedTuple):
    """Memory that a peer may pull. turn: generation of the region number, incremented at each reuse."""

    address: int
    length: int
    turn: int


class DriverEndpoint:
    """State of an endpoint in the driver. last_core: core that handled the last frame for the endpoint."""

    __slots__ = ("index", "last_core", "regions", "ring", "session", "state")

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.state = states.ENDPOINT.initial
        self.session = 0
        self.ring: ReceiveRing
        self.regions: dict[int, Region] = {}
        self.last_core = ANYWHERE


class Driver:
    """State that the driver's modules share: the NIC, the peers' addresses, timers, counters, and endpoints.

    fragment_size: data bytes of a fragment or pull reply. timers: timers of pulls by handle, and of alarms by ~endpoint.
    local_ranks: numbers of the ranks on this node. early_connects: connection requests to endpoints that are not open yet.
    close_notices: see `Firmware.take_over`. drivers: the drivers of this process by number, this one included. Open-MX has
    one driver for all ranks of a node; here each rank has its own, and the drivers of one process access each other's
    endpoints and memory.
    """

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: DmaMemory,
        settings: Settings,
        counters: Counters,
        codec: Codec,
        drivers: dict[int, Driver],
    ) -> None:
        self.number: Final = adapter.number
        self.address: Final = adapter.address
        self.addresses: Final = adapter.addresses
        self.fragment_size: Final = fragment_size(adapter.mtu)
        self.nic: Final = nic
        self.work: Final[HostWork] = host_work(nic)
        self.memory: Final = memory
        self.settings: Final = settings
        self.counters: Final = counters
        self.codec: Final = codec
        self.timers: Final[Timers[int]] = Timers()
        self.endpoints: Final[dict[int, DriverEndpoint]] = {}
        self.local_ranks: Final = frozenset((adapter.number, *adapter.siblings))
        self.early_connects: dict[Connection, Event] = {}
        self.close_notices: Announcements[Connection] | None = None
        self._node_actions: Final = node_actions(nic)
        self._adapter: Final = adapter
        self._drivers: Final = drivers
        existing = next(iter(drivers.values()), None)
        if existing is not None and existing._adapter.hosts is not adapter.hosts:
            drivers.clear()  # they belong to another run, and would keep its memory alive
        if adapter.hosts:
            drivers[adapter.number] = self
        self._numbers: Mapping[bytes, int] = {address: number for number, address in enumerate(adapter.addresses)}

    def sender(self, src: bytes, peer_index: int) -> int:
        """Return the number of a frame's sender, or -1 if its address does not match its peer index."""
        return peer_index if self._numbers.get(src) == peer_index else -1

    def driver_on_node(self, number: int) -> Driver | None:
        """Return the driver of a rank, or None if the rank is on another node or its driver is in another process."""
        if number == self.number:
            return self
        if number not in self.local_ranks:
            return None
        driver = self._drivers.get(number)
        return driver if driver is not None and driver._adapter.hosts is self._adapter.hosts else None

    def send(self, frame: bytes) -> None:
        """Send a frame through the NIC."""
        self.work.spend(DRIVER)
        self.nic.send(frame)

    def notify_closed(self, connection: Connection, first: int) -> None:
        """Notify a partner that the connection's endpoint is closed: refuse the sequence number before the session's
        first message, which no message uses. first: sequence number of that message."""
        index, peer, peer_endpoint = connection
        self._send_nack(self, peer, peer_endpoint, index, NACK_TYPE_ENDPOINT_CLOSED, seqnum_after(first, -1))

    def look_up(self, endpoint: DriverEndpoint) -> None:
        """Charge the time to find an endpoint, whose state may be in the cache of another core."""
        self.work.spend(LOOKUP, STATE_SIZE, endpoint.last_core)
        endpoint.last_core = self.work.core

    # Events. Argument `by`: the driver that runs the code: this one for a received frame, or the driver of a sender on
    # this node.

    def receive_message(self, by: Driver, dst: int, event: Event, data: Buffer = b"") -> None:
        """Deliver a message to an endpoint's library, or refuse it. dst: the endpoint."""
        endpoint = self.endpoints.get(dst)
        if endpoint is None:
            endpoint = self.endpoints[dst] = DriverEndpoint(dst)
        by.look_up(endpoint)
        if event.kind == TYPE_CONNECT:
            self._receive_connect(by, endpoint, event)
        elif endpoint.state != states.OPEN:
            self.step(endpoint, "message")
            self._refuse(by, endpoint, event, NACK_TYPE_ENDPOINT_CLOSED)
        elif event.session != endpoint.session:
            self.step(endpoint, "message of another session")
            self._refuse(by, endpoint, event, NACK_TYPE_BAD_SESSION)
        else:
            self.deliver(by, endpoint, event, data)

    def _receive_connect(self, by: Driver, endpoint: DriverEndpoint, event: Event) -> None:
        if self.close_notices is not None:
            self.close_notices.stop((endpoint.index, event.peer, event.endpoint))
        if endpoint.state == states.OPEN:
            self.deliver(by, endpoint, event)
        elif endpoint.state == states.CLOSED or event.flag & 1:
            self.step(endpoint, "connection request" if endpoint.state == states.CLOSED else "message")
            self._refuse(by, endpoint, event, NACK_TYPE_ENDPOINT_CLOSED)
        else:
            self.step(endpoint, "connection request")
            key = (endpoint.index, event.peer, event.endpoint)
            if key in self.early_connects or len(self.early_connects) < _MAX_EARLY:
                self.early_connects[key] = event

    def deliver(self, by: Driver, endpoint: DriverEndpoint, event: Event, data: Buffer = b"") -> None:
        """Hand a message over to the library of an open endpoint, or drop it if the ring is full."""
        if self._post(by, endpoint, event, data):
            self.counters.recv_messages += 1  # as the state table's row of a message to an open endpoint
        else:
            self.step(endpoint, "message without room")

    def receive_nack(self, by: Driver, dst: int, event: Event) -> None:
        """Pass the refusal of a message to the library. dst: the endpoint."""
        endpoint = self.endpoints.get(dst)
        if endpoint is None or endpoint.state != states.OPEN:
            self.counters.drop_bad_peer_addr += 1
            return
        self.counters.recv_nack_lib += 1
        self._post(by, endpoint, event)

    def _post(self, by: Driver, endpoint: DriverEndpoint, event: Event, data: Buffer = b"") -> bool:
        """Write an event into an endpoint's receive ring. Returns False if the ring is full."""
        ring = endpoint.ring
        slot = ring.take_slot()
        if slot < 0:
            return False
        ring.write(slot, event)
        target, index = ring.data(slot, len(data)), endpoint.index << 16 | slot
        if by is not self and by._node_actions is not None:
            by._node_actions.post_to(self.nic, target, data, index)
        else:
            self.nic.dma_write(target, data)
            self.nic.post_completion(index)
        return True

    def _refuse(self, by: Driver, endpoint: DriverEndpoint, event: Event, nack_type: int) -> None:
        """Refuse a message. An acknowledgement is dropped: it needs no answer."""
        if event.kind != TYPE_TRUC:
            self._send_nack(by, event.peer, event.endpoint, endpoint.index, nack_type, event.seqnum)

    def _send_nack(self, by: Driver, peer: int, dst: int, index: int, nack_type: int, seqnum: int) -> None:
        """Send a refusal. dst: the peer's endpoint. index: our endpoint."""
        self.counters.send_nack_lib += 1
        receiver = self.driver_on_node(peer)
        if receiver is not None:
            receiver.receive_nack(by, dst, refusal(self.number, index, nack_type, seqnum))
            return
        self.send(
            self.codec.pack_nack_lib(self.addresses[peer], self.address, self.number, index, nack_type, dst, 0, seqnum)
        )

    def step(self, endpoint: DriverEndpoint, event: str) -> None:
        row = states.ENDPOINT.row(endpoint.state, event)
        endpoint.state = row.next_state
        self.counters.add(row.counters)


def refusal(peer: int, endpoint: int, nack_type: int, seqnum: int) -> Event:
    """Make the event of a refusal. peer, endpoint: of the refusing endpoint."""
    event = Event(TYPE_NACK_LIB, endpoint, peer, seqnum)
    event.flag = nack_type
    return event


def fragment_size(mtu: int) -> int:
    """Return the maximum data bytes of a frame. Raises ValueError for an MTU that is too small."""
    size = min(mtu - _OVERHEAD, MAX_FRAGMENT)
    if size < 1024:  # a medium message has 32 fragments at most
        raise ValueError(f"MTU of Open-MX must be {1024 + _OVERHEAD} bytes or more, got {mtu}")
    return size

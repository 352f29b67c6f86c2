"""An endpoint's state in the driver, and the state that the driver's parts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.host_work import ANYWHERE, HostWork, host_work
from protocols.core.memory import DmaMemory
from protocols.core.peers import Loopback
from protocols.core.timers import Timers
from protocols.openmx import states
from protocols.openmx.codec import NACK_TYPE_ENDPOINT_CLOSED
from protocols.openmx.codec_interface import Codec
from protocols.openmx.counters import Counters
from protocols.openmx.endpoint_memory import Event, ReceiveRing
from protocols.openmx.mx_names import MAX_FRAGMENT, seqnum_after
from protocols.openmx.settings import Settings

DRIVER: Final = "driver"
"""Work on the host (`protocols.core.host_work`): the driver makes a frame and passes it to the NIC."""
LOOKUP: Final = "lookup"
"""Work on the host: the receive handler finds a frame's endpoint and writes the event."""
LINES: Final = 512
"""Bytes of an endpoint's state that a receive handler writes and the next one reads: eight cache lines. Our count."""

_OVERHEAD: Final = 2 + 32 + 4
"""Maximum bytes of Open-MX headers and CRC-32 in a data frame."""


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
    """State that the driver's parts share: the NIC, the peers' addresses, timers, counters, and events.

    fragment_size: data bytes of a fragment or pull reply. timers: timers of pulls by handle, and of alarms by ~endpoint.
    loopback: frames between endpoints of this NIC. loops_outside: whether the outer NIC delivers loopback frames.
    drivers: the drivers of this process by number, this one included. One driver of Open-MX serves all ranks of a node; here
    each rank has one, and they reach one another's memory where one process has them.
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
        self.loopback: Final = Loopback()
        self.loops_outside = False
        self._adapter: Final = adapter
        self._drivers: Final = drivers
        known = next(iter(drivers.values()), None)
        if known is not None and known._adapter.hosts is not adapter.hosts:
            drivers.clear()  # they are another run's, and would keep its memory
        if adapter.hosts:
            drivers[adapter.number] = self
        self._numbers: Mapping[bytes, int] = {address: number for number, address in enumerate(adapter.addresses)}

    def sender(self, src: bytes, peer_index: int) -> int:
        """Return the number of a frame's sender, or -1 if its address does not match its peer index."""
        return peer_index if self._numbers.get(src) == peer_index else -1

    def driver_on_node(self, number: int) -> Driver | None:
        """Return the driver of a rank on this node; None: it is on another node, or in another process."""
        adapter = self._adapter
        if number == self.number:
            return self
        driver = self._drivers.get(number)
        if driver is None or driver._adapter.hosts is not adapter.hosts:
            return None
        return driver if adapter.host_of(number) == adapter.host_of(self.number) else None

    def send(self, frame: bytes) -> None:
        """Send a frame through the NIC, or by loopback."""
        self.work.spend(DRIVER)
        if self.loops_outside or frame[:6] != self.address:
            self.nic.send(frame)
        else:
            self.loopback.frames.append(frame)

    def notify_closed(self, connection: Connection, first: int) -> None:
        """Notify a partner that the connection's endpoint is closed: refuse the sequence number before the session's
        first message, which no message uses. first: sequence number of that message."""
        index, peer, peer_endpoint = connection
        self.counters.send_nack_lib += 1
        self.send(
            self.codec.pack_nack_lib(
                self.addresses[peer], self.address, self.number, index, NACK_TYPE_ENDPOINT_CLOSED, peer_endpoint, 0,
                seqnum_after(first, -1),
            )
        )  # fmt: skip

    def look_up(self, endpoint: DriverEndpoint) -> None:
        """Spend the time to find a frame's endpoint, whose state may be in the cache of another core."""
        self.work.spend(LOOKUP, LINES, endpoint.last_core)
        endpoint.last_core = self.work.core

    def post(self, endpoint: DriverEndpoint, event: Event, data: Buffer = b"") -> bool:
        """Write an event into an endpoint's receive ring. False: the ring is full."""
        ring = endpoint.ring
        slot = ring.take_slot()
        if slot < 0:
            return False
        ring.write(slot, event)
        self.nic.dma_write(ring.data(slot, len(data)), data)
        self.nic.post_completion(endpoint.index << 16 | slot)
        return True


def fragment_size(mtu: int) -> int:
    """Return the maximum data bytes of a frame. Raises ValueError for an MTU that is too small."""
    size = min(mtu - _OVERHEAD, MAX_FRAGMENT)
    if size < 1024:  # a medium message has 32 fragments at most
        raise ValueError(f"MTU of Open-MX must be {1024 + _OVERHEAD} bytes or more, got {mtu}")
    return size

"""An open endpoint in the driver, and what the driver's parts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.host_work import ANYWHERE, HostWork, host_work
from protocols.core.memory import Reachable
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
"""Bytes of an endpoint that a receive handler writes, and the next one reads: eight cache lines. Our count."""

_OVERHEAD: Final = 2 + 32 + 4
"""Bytes behind Ethernet's header that a frame of data has at most, beside the data."""


Connection = tuple[int, int, int]
"""An endpoint, its partner's node, and the partner's endpoint."""


class Region(NamedTuple):
    """Memory that a peer may pull. turn: how often its number has been used."""

    address: int
    length: int
    turn: int


class DriverEndpoint:
    """An endpoint as the driver has it. touched: the core that has handled a frame for it last."""

    __slots__ = ("index", "regions", "ring", "session", "state", "touched")

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.state = states.ENDPOINT.initial
        self.session = 0
        self.ring: ReceiveRing
        self.regions: dict[int, Region] = {}
        self.touched = ANYWHERE


class Driver:
    """State that the driver's parts share: the NIC, the peers' addresses, timers, counters, and events.

    room: bytes of data of a fragment or pull reply. timers: of pulls by handle, and of alarms by ~endpoint. loopback: frames
    between endpoints of this NIC. loops_outside: the outer NIC delivers those.
    """

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: Reachable,
        settings: Settings,
        counters: Counters,
        codec: Codec,
    ) -> None:
        self.number: Final = adapter.number
        self.address: Final = adapter.address
        self.addresses: Final = adapter.addresses
        self.room: Final = room(adapter.mtu)
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
        self._numbers: Mapping[bytes, int] = {address: number for number, address in enumerate(adapter.addresses)}

    def sender(self, src: bytes, peer_index: int) -> int:
        """Return the number of a frame's sender, or -1 if address and index do not belong together."""
        return peer_index if self._numbers.get(src) == peer_index else -1

    def send(self, frame: bytes) -> None:
        """Pass a frame to the NIC, or to this driver."""
        self.work.spend(DRIVER)
        if self.loops_outside or frame[:6] != self.address:
            self.nic.send(frame)
        else:
            self.loopback.frames.append(frame)

    def bid_farewell(self, connection: Connection, first: int) -> None:
        """Tell a partner that its connection's endpoint is closed, by the refusal of the number before a session's first
        message, which no message has had. first: that message's."""
        index, peer, peer_endpoint = connection
        self.counters.send_nack_lib += 1
        self.send(
            self.codec.pack_nack_lib(
                self.addresses[peer], self.address, self.number, index, NACK_TYPE_ENDPOINT_CLOSED, peer_endpoint, 0,
                seqnum_after(first, -1),
            )
        )  # fmt: skip

    def look_up(self, endpoint: DriverEndpoint) -> None:
        """Spend what it takes to find a frame's endpoint, which another core may have touched last."""
        self.work.spend(LOOKUP, LINES, endpoint.touched)
        endpoint.touched = self.work.core

    def post(self, endpoint: DriverEndpoint, event: Event, data: Buffer = b"") -> bool:
        """Write an event into an endpoint's receive ring; False: it is full."""
        ring = endpoint.ring
        slot = ring.take_slot()
        if slot < 0:
            return False
        ring.write(slot, event)
        self.nic.dma_write(ring.place(slot, len(data)), data)
        self.nic.post_completion(endpoint.index << 16 | slot)
        return True


def room(mtu: int) -> int:
    """Return the bytes of data that a frame of that MTU carries. ValueError."""
    found = min(mtu - _OVERHEAD, MAX_FRAGMENT)
    if found < 1024:  # a medium message has 32 fragments at most
        raise ValueError(f"an MTU of {mtu} bytes is too small for Open-MX: {1024 + _OVERHEAD} at least")
    return found

"""AM-II's shared NIC alone: the test acts as its host processes, which write their endpoint frames, and as its only
peer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocols.am2 import page as layout
from protocols.am2.nic_memory import NO_ENDPOINT
from protocols.am2.settings import Settings
from protocols.am2.shared_frames import size_of
from protocols.am2.split_driver import Nic
from protocols.core.firmware import Adapter, Buffer
from protocols.core.memory import UnpinnedError
from protocols.core.split_memory import OnDoorbell
from tests.unit.protocols.am2_single_nic import ADDRESSES, TAG, SingleNic

HEAP = 1 << 19
"""Bytes of a host's heap."""
_NO_ENDPOINT_WORD = 0xFFFF_FFFF


class Heap:
    """A host's pinned memory, as the NIC accesses it."""

    def __init__(self) -> None:
        self.bytes = bytearray(HEAP)

    def view(self, address: int, length: int) -> memoryview:
        if address + length > len(self.bytes):
            raise UnpinnedError(f"{length} bytes at 0x{address:x}")
        return memoryview(self.bytes)[address : address + length]

    def fence(self) -> None:
        """Do nothing: the test has one processor."""


@dataclass
class Window:
    """Region that a host shares with the NIC: endpoint frames, the table of their endpoints, and the heap.

    pages: backing pages of the non-resident endpoints, by number.
    """

    frames: int
    descriptors: bytearray
    heap: Heap
    ring_doorbell: OnDoorbell
    bound_endpoints: list[int] = field(default_factory=list)
    pages: dict[int, bytearray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for frame in range(self.frames):
            self.bound_endpoints.append(NO_ENDPOINT)
            self.bind(frame, NO_ENDPOINT)

    def bind(self, frame: int, endpoint: int) -> None:
        self.bound_endpoints[frame] = endpoint
        word = _NO_ENDPOINT_WORD if endpoint == NO_ENDPOINT else endpoint
        address = self.frames * layout.SIZE + 4 * frame
        self.descriptors[address : address + 4] = word.to_bytes(4, sys.byteorder)

    def page(self, endpoint: int) -> memoryview:
        """Return an endpoint's frame."""
        frame = self.bound_endpoints.index(endpoint)
        return memoryview(self.descriptors)[frame * layout.SIZE : (frame + 1) * layout.SIZE]


class SharedNic(SingleNic):
    """The NIC of node 0, shared by `hosts` processes. notifications: to all processes. host_notifications: those with the
    slots of their hosts."""

    def __init__(self, settings: Settings | None = None, hosts: int = 2) -> None:
        super().__init__(settings)
        self.settings = settings or Settings()
        self.host_notifications: list[tuple[int, int, int]] = []
        self.windows: dict[int, Window] = {}
        self.split_nic = Nic(Adapter(0, ADDRESSES), _Actions(self), self.settings)
        self.firmware = self.split_nic.firmware
        self.introduce(1)
        for host in range(hosts):
            self.attach(host)

    def endpoint_number(self, host: int, endpoint: int = 0) -> int:
        return host * self.settings.numbers_per_host + endpoint

    def host_of(self, endpoint: int) -> int:
        return endpoint // self.settings.numbers_per_host

    # The hosts.

    def attach(self, host: int) -> Window:
        frames = self.settings.frames
        descriptors, heap = bytearray(size_of(frames)), Heap()
        ring_doorbell = self.split_nic.attach(self.now, host, heap, memoryview(descriptors))
        self.windows[host] = Window(frames, descriptors, heap, ring_doorbell)
        return self.windows[host]

    def detach(self, host: int) -> Window:
        """Detach a host process; return its window."""
        window = self.windows.pop(host)
        self.split_nic.detach(self.now, host, 2)
        return window

    def ring_doorbell(self, endpoint: int, subject: int) -> None:
        self.windows[self.host_of(endpoint)].ring_doorbell(self.now, endpoint << layout.SUBJECT_BITS | subject)

    def create(self, endpoint: int, *, load: bool = True) -> None:
        window = self.windows[self.host_of(endpoint)]
        window.pages[endpoint] = page = bytearray(layout.SIZE)
        with memoryview(page) as view:
            layout.set_tag(view, TAG)
        self.ring_doorbell(endpoint, layout.CREATE)
        if load:
            self.load(endpoint)

    def load(self, endpoint: int) -> None:
        """Bind a frame to the endpoint and ring LOAD, as its host does."""
        window = self.windows[self.host_of(endpoint)]
        window.bind(window.bound_endpoints.index(NO_ENDPOINT), endpoint)
        window.page(endpoint)[:] = window.pages[endpoint]
        self.ring_doorbell(endpoint, layout.LOAD)

    def copy_out(self, endpoint: int) -> None:
        """Copy the endpoint out of its frame, as its host does when the NIC has released it."""
        window = self.windows[self.host_of(endpoint)]
        window.pages[endpoint] = bytearray(window.page(endpoint))
        window.bind(window.bound_endpoints.index(endpoint), NO_ENDPOINT)

    def page(self, endpoint: int) -> memoryview:
        return self.windows[self.host_of(endpoint)].page(endpoint)

    def notifications_of(self, endpoint: int) -> list[int]:
        """Return the subjects of the notifications about an endpoint."""
        return [subject for number, subject in self.notifications if number == endpoint]


class _Actions:
    """`SharedActions` of the NIC."""

    def __init__(self, nic: SharedNic) -> None:
        self._nic = nic

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return b"".join(segments)

    def send(self, frame: Buffer) -> None:
        self._nic.sent.append(bytes(frame))

    def when_sent(self, _callback: Callable[[int], object]) -> None:
        raise AssertionError("frames leave at once")

    def send_later(self, make: Callable[[], bytes]) -> None:
        self._nic.sent.append(make())

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def post_completion(self, host: int, index: int) -> None:
        notification = index >> layout.SUBJECT_BITS, index & layout.SUBJECT_MASK
        self._nic.host_notifications.append((host, *notification))
        self._nic.notifications.append(notification)

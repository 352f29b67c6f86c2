"""Endpoint frames of a split driver: descriptor memory shared by the NIC and one host, separate for each host.

A host's memory has as many frames as the NIC has in total, and a table of the endpoints bound to them. The NIC limits
the number of frames in use at a time, over all hosts (`residency`). Other memory that the NIC accesses is in the host's
heap, which is mapped completely; its address is in the endpoint's page, or in a bulk message's entry. So the NIC waits
for a mapping only if the host has not allocated the memory yet.

Either side may read while the other writes. The host writes the first byte of an entry of a send ring last, and the NIC
reads it first. The NIC posts the notification of an arrived message after it has written the entry. Both rely on
processors that keep stores in order. If each side writes a word and then reads the other side's word, there is a fence
in between.

The host, not the NIC, copies a page that leaves its frame, after the NIC has released it. So late writes of the host
are not lost.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.nic_memory import NO_ENDPOINT
from protocols.core.firmware import Buffer
from protocols.core.memory import Allocating, SharedDmaMemory, UnpinnedError

_WORD_SIZE: Final = 4
_NO_ENDPOINT: Final = 0xFFFF_FFFF


def size_of(frames: int) -> int:
    """Return the size of one host's descriptor memory in bytes."""
    return frames * (layout.SIZE + _WORD_SIZE)


def _bound_table(descriptors: memoryview, frames: int) -> memoryview:
    """Return the table of the endpoint bound to each frame: words in native byte order, each written atomically."""
    return descriptors[frames * layout.SIZE : size_of(frames)].cast("I")


def _frame_views(descriptors: memoryview, frames: int) -> list[memoryview]:
    return [descriptors[frame * layout.SIZE : (frame + 1) * layout.SIZE] for frame in range(frames)]


class _DetachedMemory:
    """Memory of a host that has detached: every access fails."""

    def view(self, address: int, length: int) -> memoryview:
        raise UnpinnedError(f"{length} bytes at 0x{address:x} belong to a host that has detached")

    def fence(self) -> None:
        """Do nothing: the memory has no reader."""


class SharedNicFrames:
    """One host's endpoint frames, as the NIC accesses them. Implements `nic_memory.NicEndpointFrames`."""

    __slots__ = ("_bound_table", "_frame_views", "_medium", "_memory", "absent_regions", "is_trusted")

    def __init__(self, descriptors: memoryview, memory: SharedDmaMemory, frames: int, medium: int) -> None:
        """medium: maximum bytes of a medium message's data."""
        self._frame_views = _frame_views(descriptors, frames)
        self._bound_table = _bound_table(descriptors, frames)
        self._memory = memory
        self._medium = medium
        self.absent_regions: set[int] = set()
        self.is_trusted = False

    def close(self) -> None:
        """Release the memory of a host that has detached. An unanswered packet may still refer to this object."""
        self._frame_views.clear()
        self._bound_table = memoryview(b"").cast("I")
        self._memory = _DetachedMemory()

    def fence(self) -> None:
        self._memory.fence()

    def frame_of(self, endpoint: int) -> memoryview | None:
        bound_endpoints = self._bound_table.tolist()
        return self._frame_views[bound_endpoints.index(endpoint)] if endpoint in bound_endpoints else None

    def backing_page(self, endpoint: int) -> memoryview | None:  # noqa: ARG002
        return None

    def region_view(self, page: memoryview, region: int, address: int, length: int) -> memoryview | None:
        subject = region & layout.SUBJECT_MASK
        if subject >= layout.SEND_STAGING:
            address, length = layout.address_of(page, subject), 2 * layout.RING_SIZE * self._medium
            if subject == layout.SEGMENT:
                length = layout.segment_length(page)
                if address != layout.address_of(page, subject):  # the host is changing the address
                    return None
        if not address:
            return None
        try:
            return self._memory.view(address, length)
        except UnpinnedError:
            return None


class SharedHostFrames:
    """One host's endpoint frames, as its host library accesses them. Implements `nic_memory.HostEndpointFrames`."""

    def __init__(self, descriptors: memoryview, memory: Allocating, frames: int) -> None:
        self.frames = _frame_views(descriptors, frames)
        self.bound_endpoints = [NO_ENDPOINT] * frames
        self.mapped_regions: dict[int, memoryview] = {}
        self._bound_table = _bound_table(descriptors, frames)
        for frame in range(frames):
            self._bound_table[frame] = _NO_ENDPOINT
        self._memory = memory
        self.fence = memory.fence
        self._memory_by_endpoint: defaultdict[int, dict[int, memoryview]] = defaultdict(dict)
        """Pinned memory, by endpoint and by the view's `id`."""
        self._addresses: dict[int, int] = {}  # by the view's `id`
        self._library_owned: set[int] = set()  # views' `id`s of memory that was allocated here, not by the program

    def bind(self, frame: int, endpoint: int) -> None:
        self.bound_endpoints[frame] = endpoint
        self._bound_table[frame] = _NO_ENDPOINT if endpoint == NO_ENDPOINT else endpoint

    def register(self, endpoint: int, backing: memoryview) -> None:
        """Do nothing: the NIC does not access the backing page."""

    def save(self, frame: int, backing: memoryview) -> None:
        backing[:] = self.frames[frame]

    def release(self, endpoint: int) -> None:
        for memory in list(self._memory_by_endpoint.pop(endpoint, {}).values()):
            self._release(memory)

    def allocate(self, endpoint: int, size: int) -> memoryview:
        buffer = self._memory.allocate(size)
        self._library_owned.add(id(buffer))
        return self._pin(endpoint, buffer)

    def make_mappable(self, endpoint: int, memory: memoryview) -> memoryview:
        # A segment replaced by the program stays pinned until the endpoint is destroyed: data may still arrive there.
        if not memory:
            return memory
        return self._pin(endpoint, memory) if self._memory.has(memory) else self.allocate(endpoint, len(memory))

    def copy_data(self, endpoint: int, data: Buffer) -> memoryview:
        buffer = self.allocate(endpoint, len(data))
        buffer[:] = data
        return buffer

    def free_copy(self, endpoint: int, copied: memoryview) -> None:
        if self._memory_by_endpoint[endpoint].pop(id(copied), None) is not None:
            self._release(copied)

    def address_of(self, memory: memoryview | None) -> int:
        return 0 if memory is None else self._addresses.get(id(memory), 0)

    def _pin(self, endpoint: int, memory: memoryview) -> memoryview:
        self._addresses[id(memory)] = self._memory.pin_page(memory, 1)
        self._memory_by_endpoint[endpoint][id(memory)] = memory
        return memory

    def _release(self, memory: memoryview) -> None:
        self._memory.unpin(self._addresses.pop(id(memory)))
        if id(memory) in self._library_owned:
            self._library_owned.remove(id(memory))
            self._memory.release(memory)

"""Endpoint frames of a split driver: descriptor memory shared by the NIC and one host, separate for each host.

A host has as many frames there as the NIC has in total, and a table of the endpoint in each. The NIC limits how many
are in use at a time, over all hosts (`residency`). Other memory that the NIC reaches lies in the host's heap, all of
which is mapped: an endpoint's page, and a bulk message's entry, contain its address. So no mapping is waited for,
except for memory that the host has not allocated yet.

Either side may read while the other writes. An entry's first byte is written last and read first, which relies on
processors that keep stores in order; where each side writes a word and then reads the other's, there is a fence in
between.

A page that leaves its frame is not written back by DMA: the host copies it from the frame itself, when the NIC has
released it. So late writes of the host are not lost.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.nic_memory import NOBODY
from protocols.core.firmware import Buffer
from protocols.core.memory import Allocating, SharedReachable, UnpinnedError

_WORD: Final = 4
_NOBODY: Final = 0xFFFF_FFFF


def size_of(frames: int) -> int:
    """Return the bytes of one host's descriptor memory."""
    return frames * (layout.SIZE + _WORD)


def _table(descriptors: memoryview, frames: int) -> memoryview:
    """Return the table of the endpoint in each frame: words in native byte order, each written atomically."""
    return descriptors[frames * layout.SIZE : size_of(frames)].cast("I")


def _pages(descriptors: memoryview, frames: int) -> list[memoryview]:
    return [descriptors[frame * layout.SIZE : (frame + 1) * layout.SIZE] for frame in range(frames)]


class _Nothing:
    """Memory of a host that has detached: every access fails."""

    def view(self, address: int, length: int) -> memoryview:
        raise UnpinnedError(f"{length} bytes at 0x{address:x} were a host's that is gone")

    def fence(self) -> None:
        """Do nothing: the memory has no reader."""


class SeenFrames:
    """One host's endpoint frames as the NIC sees them; implements `nic_memory.Frames`."""

    __slots__ = ("_medium", "_memory", "_pages", "_table", "absent", "trusted")

    def __init__(self, descriptors: memoryview, memory: SharedReachable, frames: int, medium: int) -> None:
        """medium: maximum bytes of a medium message's data."""
        self._pages = _pages(descriptors, frames)
        self._table = _table(descriptors, frames)
        self._memory = memory
        self._medium = medium
        self.absent: set[int] = set()
        self.trusted = False

    def close(self) -> None:
        """Release the host's memory: a packet that is not answered yet may keep this object alive after the host has
        gone."""
        self._pages.clear()
        self._table = memoryview(b"").cast("I")
        self._memory = _Nothing()

    def fence(self) -> None:
        self._memory.fence()

    def frame_of(self, endpoint: int) -> memoryview | None:
        bound = self._table.tolist()
        return self._pages[bound.index(endpoint)] if endpoint in bound else None

    def page_of(self, endpoint: int) -> memoryview | None:  # noqa: ARG002
        return None

    def reach(self, page: memoryview, region: int, address: int, length: int) -> memoryview | None:
        subject = region & layout.SUBJECT
        if subject >= layout.STAGED:
            address, length = layout.address_of(page, subject), 2 * layout.ENTRIES * self._medium
            if subject == layout.SEGMENT:
                length = layout.segment_of(page)
                if address != layout.address_of(page, subject):  # the host is changing the address
                    return None
        if not address:
            return None
        try:
            return self._memory.view(address, length)
        except UnpinnedError:
            return None


class OwnFrames:
    """One host's endpoint frames as the host library sees them; implements `nic_memory.Backing`."""

    def __init__(self, descriptors: memoryview, memory: Allocating, frames: int) -> None:
        self.frames = _pages(descriptors, frames)
        self.bound = [NOBODY] * frames
        self.reachable: dict[int, memoryview] = {}
        self._table = _table(descriptors, frames)
        for frame in range(frames):
            self._table[frame] = _NOBODY
        self._memory = memory
        self.fence = memory.fence
        self._held: defaultdict[int, dict[int, memoryview]] = defaultdict(dict)
        """Memory that the NIC may use, by endpoint, and by the object's identity."""
        self._addresses: dict[int, int] = {}  # of the memory in _held
        self._allocated: set[int] = set()  # the part of it that no program has allocated

    def bind(self, frame: int, endpoint: int) -> None:
        self.bound[frame] = endpoint
        self._table[frame] = _NOBODY if endpoint == NOBODY else endpoint

    def register(self, endpoint: int, backing: memoryview) -> None:
        """Do nothing: the NIC does not access the backing page."""

    def save(self, frame: int, backing: memoryview) -> None:
        backing[:] = self.frames[frame]

    def release(self, endpoint: int) -> None:
        for held in list(self._held.pop(endpoint, {}).values()):
            self._give_back(held)

    def allocate(self, endpoint: int, size: int) -> memoryview:
        found = self._memory.allocate(size)
        self._allocated.add(id(found))
        return self._pinned(endpoint, found)

    def make_mappable(self, endpoint: int, memory: memoryview) -> memoryview:
        # Memory replaced by the program is kept until the endpoint is gone: parts may still arrive there.
        if not memory:
            return memory
        return self._pinned(endpoint, memory) if self._memory.has(memory) else self.allocate(endpoint, len(memory))

    def copy(self, endpoint: int, data: Buffer) -> memoryview:
        found = self.allocate(endpoint, len(data))
        found[:] = data
        return found

    def forget(self, endpoint: int, copied: memoryview) -> None:
        if self._held[endpoint].pop(id(copied), None) is not None:
            self._give_back(copied)

    def address(self, memory: memoryview | None) -> int:
        return 0 if memory is None else self._addresses.get(id(memory), 0)

    def _pinned(self, endpoint: int, memory: memoryview) -> memoryview:
        self._addresses[id(memory)] = self._memory.pin_page(memory, 1)
        self._held[endpoint][id(memory)] = memory
        return memory

    def _give_back(self, memory: memoryview) -> None:
        self._memory.unpin(self._addresses.pop(id(memory)))
        if id(memory) in self._allocated:
            self._allocated.remove(id(memory))
            self._memory.release(memory)

"""The parts of a NIC's memory that its host's kernel writes: endpoint frames, the table of the endpoint in each, and
mappings of host memory."""

from __future__ import annotations

from typing import Final, Protocol

from protocols.am2 import page
from protocols.core.firmware import Buffer

NOBODY: Final = -1


class Frames(Protocol):
    """One host's endpoints, as their NIC accesses them. trusted: whether the host's kernel has written them, for which
    the NIC may wait. absent: regions (`page`) that the NIC has asked for and the host does not have."""

    trusted: bool
    absent: set[int]

    def frame_of(self, endpoint: int) -> memoryview | None:
        """Return the frame that an endpoint is bound to, or None."""
        ...

    def page_of(self, endpoint: int) -> memoryview | None:
        """Return the host memory that backs an endpoint's frame; None: the host copies the frame back by itself."""
        ...

    def reach(self, page: memoryview, region: int, address: int, length: int) -> memoryview | None:
        """Access a region by DMA; None: it is not mapped. page: the frame of its endpoint. address, length: of a bulk
        message's data, as in its entry."""
        ...

    def fence(self) -> None:
        """Make earlier writes visible to the host before later reads."""
        ...


class Backing(Protocol):
    """One host's endpoint frames, as its host library accesses them. frames: each the size of a page. bound: the
    endpoint in each, or NOBODY. reachable: DMA mappings that the host maintains, by region."""

    frames: list[memoryview]
    bound: list[int]
    reachable: dict[int, memoryview]

    def bind(self, frame: int, endpoint: int) -> None:
        """Bind an endpoint to a frame; NOBODY frees the frame."""
        ...

    def register(self, endpoint: int, backing: memoryview) -> None:
        """Register a new endpoint."""
        ...

    def save(self, frame: int, backing: memoryview) -> None:
        """Save a frame that the NIC has released to host memory."""
        ...

    def release(self, endpoint: int) -> None:
        """Free all memory of a destroyed endpoint, which the NIC has released."""
        ...

    def allocate(self, endpoint: int, size: int) -> memoryview:
        """Allocate mappable memory for the lifetime of the endpoint. Raises MemoryError."""
        ...

    def make_mappable(self, endpoint: int, memory: memoryview) -> memoryview:
        """Return mappable memory that stands for a program's memory: that memory itself, or a buffer that is copied to it.
        Raises MemoryError."""
        ...

    def copy(self, endpoint: int, data: Buffer) -> memoryview:
        """Copy data to be sent; kept until `forget`. Raises MemoryError."""
        ...

    def forget(self, endpoint: int, copied: memoryview) -> None:
        """Free memory from `copy`."""
        ...

    def address(self, memory: memoryview | None) -> int:
        """Return the address by which the NIC finds the memory; 0: it finds it by the region's number."""
        ...

    def fence(self) -> None:
        """Make earlier writes visible to the NIC before later reads."""
        ...


class NicMemory:
    """Implements both `Frames` and `Backing`, for host and NIC in one process. pages: host memory that backs the frames,
    by endpoint."""

    __slots__ = ("absent", "bound", "frames", "pages", "reachable", "trusted")

    def __init__(self, frames: int) -> None:
        self.frames = [memoryview(bytearray(page.SIZE)) for _ in range(frames)]
        self.bound = [NOBODY] * frames
        self.pages: Final[dict[int, memoryview]] = {}
        self.reachable: dict[int, memoryview] = {}
        self.absent: set[int] = set()
        self.trusted = True

    def frame_of(self, endpoint: int) -> memoryview | None:
        return self.frames[self.bound.index(endpoint)] if endpoint in self.bound else None

    def page_of(self, endpoint: int) -> memoryview | None:
        return self.pages[endpoint]

    def reach(self, page: memoryview, region: int, address: int, length: int) -> memoryview | None:  # noqa: ARG002
        return self.reachable.get(region)

    def bind(self, frame: int, endpoint: int) -> None:
        self.bound[frame] = endpoint

    def register(self, endpoint: int, backing: memoryview) -> None:
        self.pages[endpoint] = backing

    def save(self, frame: int, backing: memoryview) -> None:
        """Do nothing: the NIC has written the page back by DMA."""

    def release(self, endpoint: int) -> None:
        self.pages.pop(endpoint, None)

    def allocate(self, endpoint: int, size: int) -> memoryview:  # noqa: ARG002
        return memoryview(bytearray(size))

    def make_mappable(self, endpoint: int, memory: memoryview) -> memoryview:  # noqa: ARG002
        return memory

    def copy(self, endpoint: int, data: Buffer) -> memoryview:  # noqa: ARG002
        return memoryview(bytes(data))

    def forget(self, endpoint: int, copied: memoryview) -> None:
        """Do nothing: there is no other reference."""

    def address(self, memory: memoryview | None) -> int:  # noqa: ARG002
        return 0

    def fence(self) -> None:
        """Do nothing: host and NIC run on one processor."""

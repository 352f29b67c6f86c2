"""The parts of a NIC's memory that the host's kernel writes: endpoint frames, the table of the endpoints bound to them,
and mappings of host memory."""

from __future__ import annotations

from typing import Final, Protocol

from protocols.am2 import page
from protocols.core.firmware import Buffer

NO_ENDPOINT: Final = -1


class NicEndpointFrames(Protocol):
    """One host's endpoint frames, as the NIC accesses them. is_trusted: the host's kernel maintains the frames, so that
    the NIC may wait for the kernel. absent_regions: regions (`page`) that the NIC has requested and that do not
    exist."""

    __slots__ = ()

    is_trusted: bool
    absent_regions: set[int]

    def frame_of(self, endpoint: int) -> memoryview | None:
        """Return the frame to which an endpoint is bound, or None."""
        ...

    def backing_page(self, endpoint: int) -> memoryview | None:
        """Return the host memory that backs an endpoint's frame; None: the host copies the frame itself."""
        ...

    def region_view(self, page: memoryview, region: int, address: int, length: int) -> memoryview | None:
        """Return a region of host memory for DMA; None: the region is not mapped. page: the frame of the region's
        endpoint. address, length: of a bulk message's data, from the message's entry; unused for other regions."""
        ...

    def fence(self) -> None:
        """Make earlier writes visible to the host before later reads."""
        ...


class HostEndpointFrames(Protocol):
    """One host's endpoint frames, as its host library accesses them. frames: each the size of a page. bound_endpoints:
    number of each frame's endpoint, or NO_ENDPOINT. mapped_regions: DMA mappings that the host maintains, by region."""

    __slots__ = ()

    frames: list[memoryview]
    bound_endpoints: list[int]
    mapped_regions: dict[int, memoryview]

    def bind(self, frame: int, endpoint: int) -> None:
        """Bind an endpoint to a frame; NO_ENDPOINT frees the frame."""
        ...

    def register(self, endpoint: int, backing: memoryview) -> None:
        """Register a new endpoint."""
        ...

    def save(self, frame: int, backing: memoryview) -> None:
        """Copy a frame that the NIC has unloaded to host memory, unless the NIC has copied it."""
        ...

    def release(self, endpoint: int) -> None:
        """Free all memory of a destroyed endpoint, after the NIC has released it."""
        ...

    def allocate(self, endpoint: int, size: int) -> memoryview:
        """Allocate mappable memory for the lifetime of the endpoint. Raises MemoryError."""
        ...

    def make_mappable(self, endpoint: int, memory: memoryview) -> memoryview:
        """Return mappable memory for a program's memory: that memory itself, or a buffer whose contents the host
        library copies there. Raises MemoryError."""
        ...

    def copy_data(self, endpoint: int, data: Buffer) -> memoryview:
        """Copy data to be sent. The copy is kept until `free_copy`. Raises MemoryError."""
        ...

    def free_copy(self, endpoint: int, copied: memoryview) -> None:
        """Free memory from `copy_data`."""
        ...

    def address_of(self, memory: memoryview | None) -> int:
        """Return the memory's address for the NIC; 0 if the NIC finds the memory by the region's number."""
        ...

    def fence(self) -> None:
        """Make earlier writes visible to the NIC before later reads."""
        ...


class NicMemory(NicEndpointFrames, HostEndpointFrames):
    """Endpoint frames of a host and a NIC in one process. backing_pages: host memory that backs the frames, by
    endpoint."""

    __slots__ = ("absent_regions", "backing_pages", "bound_endpoints", "frames", "is_trusted", "mapped_regions")

    def __init__(self, frames: int) -> None:
        self.frames = [memoryview(bytearray(page.SIZE)) for _ in range(frames)]
        self.bound_endpoints = [NO_ENDPOINT] * frames
        self.backing_pages: Final[dict[int, memoryview]] = {}
        self.mapped_regions: dict[int, memoryview] = {}
        self.absent_regions: set[int] = set()
        self.is_trusted = True

    def frame_of(self, endpoint: int) -> memoryview | None:
        return self.frames[self.bound_endpoints.index(endpoint)] if endpoint in self.bound_endpoints else None

    def backing_page(self, endpoint: int) -> memoryview | None:
        return self.backing_pages[endpoint]

    def region_view(self, page: memoryview, region: int, address: int, length: int) -> memoryview | None:  # noqa: ARG002
        return self.mapped_regions.get(region)

    def bind(self, frame: int, endpoint: int) -> None:
        self.bound_endpoints[frame] = endpoint

    def register(self, endpoint: int, backing: memoryview) -> None:
        self.backing_pages[endpoint] = backing

    def save(self, frame: int, backing: memoryview) -> None:
        """Do nothing: the NIC has written the page to host memory by DMA."""

    def release(self, endpoint: int) -> None:
        self.backing_pages.pop(endpoint, None)

    def allocate(self, endpoint: int, size: int) -> memoryview:  # noqa: ARG002
        return memoryview(bytearray(size))

    def make_mappable(self, endpoint: int, memory: memoryview) -> memoryview:  # noqa: ARG002
        return memory

    def copy_data(self, endpoint: int, data: Buffer) -> memoryview:  # noqa: ARG002
        return memoryview(bytes(data))

    def free_copy(self, endpoint: int, copied: memoryview) -> None:
        """Do nothing: there is no other reference."""

    def address_of(self, memory: memoryview | None) -> int:  # noqa: ARG002
        return 0

    def fence(self) -> None:
        """Do nothing: host and NIC run on one processor."""

"""What of a NIC's memory its host's kernel writes: endpoint frames, which endpoint is in which, and what host memory is
reached."""

from __future__ import annotations

from typing import Final, Protocol

from protocols.am2 import page
from protocols.core.firmware import Buffer

NOBODY: Final = -1


class Frames(Protocol):
    """One host's endpoints, as their NIC gets at them. trusted: whether it is the kernel that has written it, and that a NIC
    may wait for. absent: regions (`page`) that the NIC has asked for and the host has none of."""

    trusted: bool
    absent: set[int]

    def frame_of(self, endpoint: int) -> memoryview | None:
        """The frame that it is bound to."""
        ...

    def page_of(self, endpoint: int) -> memoryview | None:
        """Host memory behind its frame; None: the host takes its frame back by itself."""
        ...

    def reach(self, page: memoryview, region: int, address: int, length: int) -> memoryview | None:
        """A region, by DMA; None: it is not mapped. page: the frame of its endpoint. address, length: of a bulk message's
        data, as its entry has them."""
        ...

    def fence(self) -> None:
        """What is written before is seen by the host before anything is read after."""
        ...


class Backing(Protocol):
    """The same, as the host library has it. frames: each of a page. bound: the endpoint in each, or NOBODY. reachable: DMA
    mappings that the host must care for, by region."""

    frames: list[memoryview]
    bound: list[int]
    reachable: dict[int, memoryview]

    def bind(self, frame: int, endpoint: int) -> None:
        """That endpoint is in the frame now, or NOBODY."""
        ...

    def begin(self, endpoint: int, backing: memoryview) -> None:
        """There is such an endpoint."""
        ...

    def unloaded(self, frame: int, backing: memoryview) -> None:
        """The NIC has let go of a frame: what was in it is in host memory now."""
        ...

    def gone(self, endpoint: int) -> None:
        """The NIC has let go of an endpoint that there is not any more: nothing of its memory is used."""
        ...

    def allocate(self, endpoint: int, size: int) -> memoryview:
        """Memory that can be mapped, for as long as there is the endpoint. MemoryError."""
        ...

    def own(self, endpoint: int, memory: memoryview) -> memoryview:
        """Memory that can be mapped in the place of a program's: itself, or what is to be copied there. MemoryError."""
        ...

    def copy(self, endpoint: int, data: Buffer) -> memoryview:
        """Data to be sent, until `forget`. MemoryError."""
        ...

    def forget(self, endpoint: int, copied: memoryview) -> None:
        """What `copy` has given is not used any more."""
        ...

    def address(self, memory: memoryview | None) -> int:
        """By which the NIC finds it; 0: by the region's number."""
        ...

    def fence(self) -> None:
        """What is written before is seen by the NIC before anything is read after."""
        ...


class NicMemory:
    """Both, in one process. pages: host memory behind the frames, by endpoint."""

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

    def begin(self, endpoint: int, backing: memoryview) -> None:
        self.pages[endpoint] = backing

    def unloaded(self, frame: int, backing: memoryview) -> None:
        """The NIC has done it by DMA."""

    def gone(self, endpoint: int) -> None:
        self.pages.pop(endpoint, None)

    def allocate(self, endpoint: int, size: int) -> memoryview:  # noqa: ARG002
        return memoryview(bytearray(size))

    def own(self, endpoint: int, memory: memoryview) -> memoryview:  # noqa: ARG002
        return memory

    def copy(self, endpoint: int, data: Buffer) -> memoryview:  # noqa: ARG002
        return memoryview(bytes(data))

    def forget(self, endpoint: int, copied: memoryview) -> None:
        """Nobody else has it."""

    def address(self, memory: memoryview | None) -> int:  # noqa: ARG002
        return 0

    def fence(self) -> None:
        """Nobody else has a processor of his own."""

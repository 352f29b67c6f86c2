"""What of a NIC's memory its host's kernel writes: endpoint frames, which endpoint is in which, and what host memory is
reached."""

from __future__ import annotations

from collections import deque
from typing import Final

from protocols.am2 import page

NOBODY: Final = -1


class NicMemory:
    """frames: endpoint frames, each of a page. bound: the endpoint that each is bound to, or NOBODY. pages: host memory
    behind the frames, by endpoint. reachable: DMA mappings, by region (`page`). wanted: regions that the NIC has asked
    for. absent: those of which the host has none."""

    __slots__ = ("absent", "bound", "frames", "pages", "reachable", "wanted")

    def __init__(self, frames: int) -> None:
        self.frames: Final = [memoryview(bytearray(page.SIZE)) for _ in range(frames)]
        self.bound: Final = [NOBODY] * frames
        self.pages: Final[dict[int, memoryview]] = {}
        self.reachable: Final[dict[int, memoryview]] = {}
        self.wanted: Final[deque[int]] = deque()
        self.absent: Final[set[int]] = set()

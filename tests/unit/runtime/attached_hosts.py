"""Host processes attached to a shared NIC, for tests: a region and descriptors, but no process."""

from __future__ import annotations

import os
import socket

from protocols.core.split_memory import SplitDriver
from testbed.kernel.filesystem import make_sealed
from testbed.runtime.shared.functions import AttachedHost
from testbed.runtime.shared.region import Region, RegionLayout

TAIL, HEAD, ASLEEP = 0, 16, 32
"""Indexes of the control words of a ring."""


class NullWire:
    """Wire that discards all frames."""

    @staticmethod
    def send(_frame: bytes) -> None: ...


def attached_host(split_driver: SplitDriver, heap: int, entries: int = 0) -> AttachedHost:
    """Return an attachment with a heap of `heap` bytes. entries: of each ring; 0: as many as the driver has in flight."""
    entries = entries or 1 << (split_driver.max_in_flight - 1).bit_length()
    layout = RegionLayout(entries, split_driver.descriptors, heap)
    memory = make_sealed("test", layout.size)
    region = Region(memory, layout)
    os.close(memory)
    control, peer = socket.socketpair()
    peer.close()
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.close(reader)
    return AttachedHost(region, control, os.getpid(), os.pidfd_open(os.getpid()), os.eventfd(0), writer)


def take_all_completions(host: AttachedHost) -> None:
    """Empty the ring of completions, as a host library that has handled all of them."""
    words = host.region.completions.words
    words[HEAD] = words[TAIL]

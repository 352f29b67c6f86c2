"""A protocol whose firmware and host library can be in two processes.

Between them there is nothing but the NIC's descriptor memory, the host's pinned memory, and numbers: of doorbells one way,
of descriptors that the host has back the other. The host is not trusted: its firmware reads a descriptor once, and goes by
what it has read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocols.core.firmware import Actions, Adapter, Bell, Firmware, Host
from protocols.core.memory import Pinning, Reachable


@dataclass(frozen=True, slots=True)
class Apart:
    """descriptors: bytes of their memory. most: doorbells, and descriptors to be had back, that a host has under way.
    firmware and host: either side, on the same descriptor memory. vacant: firmware for a NIC without a host. Where
    one is gone, of a greater incarnation and in the place of the former: what was under way is over, and it tells the peers.
    It takes no message: the firmware for the next host has the same incarnation, and comes in its place."""

    descriptors: int
    most: int
    firmware: Callable[[Adapter, Actions, Reachable, memoryview, Firmware], Firmware]
    host: Callable[[Adapter, Bell, Pinning, memoryview], Host]
    vacant: Callable[[Adapter, Actions, Firmware | None], Firmware]

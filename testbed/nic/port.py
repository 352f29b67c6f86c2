"""The interface between a NIC and its link."""

from __future__ import annotations

from typing import Protocol


class Port(Protocol):
    """Where a NIC's frames go: a direction of a link in the simulation, a packet socket elsewhere."""

    def enter(self, now: int, frame: bytes) -> object:
        """Send a frame that leaves the NIC at that time."""
        ...

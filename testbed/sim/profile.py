"""What one hardware's actions cost. The neutral profile prices nothing, so that only the links take time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SECOND: Final = 10**9

_OF_PROCESSOR: Final = ("receive", "ring", "tick", "send", "transfer", "show")


def transfer_time(size: int, rate: int) -> int:
    """Nanoseconds, rounded up, that bytes take at a rate in bit/s; 0, as everywhere, is no limit."""
    return -(-size * 8 * SECOND // rate) if rate else 0


@dataclass(frozen=True, slots=True)
class Profile:
    """Times in nanoseconds, rates in bit/s with 0 for "takes no time". A system's own values stand with their sources
    beside its firmware."""

    name: str = "ideal"

    # A host core.
    post: int = 0
    """To give the NIC a descriptor, whatever its size."""
    write_rate: int = 0
    """At which it writes to the NIC by programmed output."""
    translate: int = 0
    """To ask the kernel for a page's physical address."""
    notice: int = 0
    """To see that a descriptor has come back."""

    # Between host and NIC.
    doorbell: int = 0
    """From the end of the host's write until the NIC sees it."""

    # The NIC's processor.
    receive: int = 0
    """To take a frame that has come."""
    ring: int = 0
    """To take a descriptor."""
    tick: int = 0
    """To find out what a deadline was for."""
    send: int = 0
    """To hand a frame to the wire."""
    transfer: int = 0
    """To start one DMA transfer."""
    show: int = 0
    """To give a descriptor back: until the host can see it."""

    # The DMA engines, one for each direction.
    fetch: int = 0
    """Set-up of a transfer from host memory."""
    fetch_rate: int = 0
    store: int = 0
    """Set-up of a transfer into host memory."""
    store_rate: int = 0

    receive_ring: int = 0
    """How many frames can wait for the processor; one that comes beyond is lost. 0: any number."""

    @property
    def is_free(self) -> bool:
        """It prices nothing."""
        return self == Profile(self.name, receive_ring=self.receive_ring)

    def slowed(self, factor: float) -> Profile:
        """With a NIC's processor that takes so many times as long for everything."""
        costs = {key: round(getattr(self, key) * factor) for key in _OF_PROCESSOR}
        return replace(self, **costs)


IDEAL: Final = Profile()

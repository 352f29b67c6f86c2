"""What one hardware's actions cost: the form of a profile. The ideal one prices nothing, so that only the links take time.

A system's own values stand, with their sources, beside its firmware. A NIC's firmware is a loop that takes one event after
the other (`receive`, `ring`, `tick`, `fetched`, `stored`, `sent`); what it does about an event costs the rest (`transfer`,
`send`, `show`). Time is integer nanoseconds, a rate integer bit/s with 0 for "takes no time", a size integer bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SECOND: Final = 10**9

OF_PROCESSOR: Final = ("receive", "ring", "tick", "fetched", "stored", "sent", "send", "transfer", "show")
"""What the NIC's processor spends its time on."""

FREE_OF_COST: Final = ("name", "receive_ring", "processors", "ahead", "pages_apart", "bus_burst")
"""What says how the parts are put together, and has no price by itself."""


def transfer_time(size: int, rate: int) -> int:
    """Nanoseconds, rounded up, that bytes take at a rate in bit/s; 0, as everywhere, is no limit."""
    return -(-size * 8 * SECOND // rate) if rate else 0


@dataclass(frozen=True, slots=True)
class Profile:
    """One hardware's. ValueError for values that cannot be."""

    name: str = "ideal"

    # A host core.
    post: int = 0
    """To give the NIC a descriptor, whatever its size."""
    write_rate: int = 0
    """At which it writes to the NIC by programmed output."""
    translate: int = 0
    """To ask the kernel for a page's physical address."""
    notice: int = 0
    """To see that a descriptor has come back: to read it from the NIC's memory."""
    interrupt: int = 0
    """To be interrupted by the NIC, and to see why."""
    pages_apart: bool = False
    """A buffer's pages lie anywhere in the host's memory: each is a DMA transfer of its own."""

    # Between host and NIC.
    doorbell: int = 0
    """From the end of the host's write until the NIC sees it."""
    bus_rate: int = 0
    """Of the one bus on which DMA transfers, and the host's reads and writes, wait for each other. 0: there is none."""
    bus_transaction: int = 0
    """That each DMA transaction on it takes beside its bytes."""
    bus_burst: int = 0
    """Bytes of a transaction, at most; 0: a transfer is one."""

    # The NIC's processors: to take an event ...
    receive: int = 0
    """A frame has come."""
    ring: int = 0
    """The host has given a descriptor."""
    tick: int = 0
    """A deadline has passed."""
    fetched: int = 0
    """A DMA transfer from host memory is over. What was fetched can be sent then."""
    stored: int = 0
    """A DMA transfer into host memory is over. What follows from it comes then."""
    sent: int = 0
    """A frame has left."""
    # ... and to do something about it.
    send: int = 0
    """To hand a frame to the wire."""
    transfer: int = 0
    """To start one DMA transfer."""
    show: int = 0
    """To give a descriptor back: until the host can see it."""

    processors: int = 1
    """2: a frame that comes, and all that it causes, has a processor of its own."""
    receive_ring: int = 0
    """How many frames can wait for the processor; one that comes beyond is lost. 0: any number."""
    ahead: int = 0
    """How many frames are in the NIC at once to be sent: the next one is fetched when the first has left. 0: any number."""

    # The DMA engines, one for each direction.
    fetch: int = 0
    """Set-up of a transfer from host memory."""
    fetch_rate: int = 0
    store: int = 0
    """Set-up of a transfer into host memory."""
    store_rate: int = 0

    def __post_init__(self) -> None:
        for key in self.__slots__:
            value = getattr(self, key)
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{key} of {value}: 0 or more")
        if self.processors not in (1, 2):
            raise ValueError(f"{self.processors} processors: 1 or 2")

    @property
    def is_free(self) -> bool:
        """It prices nothing."""
        return self == Profile(**{key: getattr(self, key) for key in FREE_OF_COST})

    def slowed(self, factor: float) -> Profile:
        """With NIC's processors that take so many times as long for everything."""
        costs = {key: round(getattr(self, key) * factor) for key in OF_PROCESSOR}
        return replace(self, **costs)

    def bus_time(self, size: int) -> int:
        """Nanoseconds that a DMA transfer of so many bytes has the bus."""
        bursts = -(-size // self.bus_burst) if self.bus_burst else 1
        return bursts * self.bus_transaction + transfer_time(size, self.bus_rate)


IDEAL: Final = Profile()

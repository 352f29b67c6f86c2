"""Hardware profiles: the costs of NIC and host actions. In the ideal profile all are 0, so that only the links take
time.

A system's own values are kept, with their sources, beside its firmware. A NIC's firmware is a loop that handles one
event after the other (`receive`, `ring`, `tick`, `fetched`, `stored`, `sent`); the actions that it takes for an event
cost extra (`transfer`, `send`, `show`). Times are integer nanoseconds, rates integer bit/s with 0 for "takes no time",
sizes integer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from protocols.core.host_work import Cost

SECOND: Final = 10**9

OF_PROCESSOR: Final = ("receive", "ring", "tick", "fetched", "stored", "sent", "send", "transfer", "show")
"""The fields that take time of the NIC's processor."""

FREE_OF_COST: Final = (
    "name", "receive_ring", "receive_queues", "steering", "round_robin", "processors", "ahead", "pages_apart", "bus_burst",
    "hosted", "polled", "busy_waiting", "timeslice", "cores", "cores_per_cache",
)  # fmt: skip
"""The fields that describe structure and cost nothing by themselves."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs of a NIC and its host. Raises ValueError for invalid values."""

    name: str = "ideal"

    # A host core.
    post: int = 0
    """Pass a descriptor to the NIC, whatever its size."""
    write_rate: int = 0
    """Rate of programmed output to the NIC."""
    translate: int = 0
    """Ask the kernel for a page's physical address."""
    notice: int = 0
    """Notice a returned descriptor: read it from the NIC's memory."""
    poll: int = 0
    """Poll without success. 0: the simulation's default (`testbed.engine.loop.POLL_TIME`)."""
    interrupt: int = 0
    """Take an interrupt from the NIC and find its reason."""
    pages_apart: bool = False
    """A buffer's pages are scattered over the host's memory: each is a DMA transfer of its own."""
    cores: int = 1
    """Cores of the host; a cluster's description may override it."""
    cores_per_cache: int = 1
    """Consecutive cores that share a cache; a cluster's description may override it."""
    work: Mapping[str, Cost] = field(default_factory=dict)
    """Costs of work on host cores, by kind (`host_work`)."""
    timeslice: int = 10_000_000
    """Longest computation of a program on a core that it shares with others, before another has its turn. The default is a
    tick of Linux's 100 Hz timer."""
    hosted: bool = False
    """The firmware runs on the host's cores, by traps, interrupts and softirqs; the NIC only moves frames by DMA."""
    polled: bool = False
    """A hosted NIC has no interrupts: frames wait in it until the host reads them (`HostWork.read_frames`)."""
    busy_waiting: bool = False
    """Programs that wait poll: a core with a program is never idle."""
    receive_queues: int = 1
    """Receive queues of a hosted NIC, each with an interrupt of its own (`Protocol.steering`): queue k interrupts core k."""
    steering: str = ""
    """Name of the hash that chooses a frame's queue; empty: the protocol's first."""
    round_robin: bool = False
    """Each interrupt is taken by the core after the one that took the previous interrupt, for all queues."""
    coalescing: int = 0
    """Time that the NIC waits for further frames before an interrupt."""

    # Between host and NIC.
    doorbell: int = 0
    """From the end of the host's write until the NIC notices it."""
    bus_rate: int = 0
    """Rate of the bus that DMA transfers and the host's reads and writes share. 0: no bus is modelled."""
    bus_transaction: int = 0
    """Overhead of each DMA transaction on the bus."""
    dma_transaction: int = 0
    """Overhead of each transaction of the NIC's DMA engines, if it differs. 0: as `bus_transaction`."""
    bus_burst: int = 0
    """Maximum bytes of a transaction; 0: a transfer is one transaction."""

    # The NIC's processors: to take an event ...
    receive: int = 0
    """A frame has arrived."""
    ring: int = 0
    """The host has passed a descriptor."""
    tick: int = 0
    """A deadline has passed."""
    fetched: int = 0
    """A DMA transfer from host memory has finished. The fetched data can be sent from then on."""
    stored: int = 0
    """A DMA transfer into host memory has finished. Its consequences follow from then on."""
    sent: int = 0
    """A frame has left the NIC."""
    # ... and to do something about it.
    send: int = 0
    """Pass a frame to the wire."""
    transfer: int = 0
    """Start one DMA transfer."""
    show: int = 0
    """Return a descriptor: until the host can see it."""

    processors: int = 1
    """With 2, received frames, and all actions that they cause, have a processor of their own."""
    receive_ring: int = 0
    """Frames that can wait for the processor; further frames are lost. 0: any number."""
    ahead: int = 0
    """Frames that the NIC holds for sending at once: the next is fetched when the first has left. 0: any number."""

    # The DMA engines, one for each direction.
    fetch: int = 0
    """Set-up time of a transfer from host memory."""
    fetch_rate: int = 0
    store: int = 0
    """Set-up time of a transfer into host memory."""
    store_rate: int = 0
    flush: int = 0
    """The host's core flushes the buffer between bus and memory when a transfer has ended, before its data counts."""

    def __post_init__(self) -> None:
        for key in self.__slots__:
            value = getattr(self, key)
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{key} must be 0 or more, got {value}")
        if self.processors not in (1, 2):
            raise ValueError(f"processors must be 1 or 2, got {self.processors}")
        for key in ("receive_queues", "timeslice", "cores", "cores_per_cache"):
            if not getattr(self, key):
                raise ValueError(f"{key} must be 1 or more, got 0")

    @property
    def is_free(self) -> bool:
        """Whether the profile has no costs."""
        return self == Profile(**{key: getattr(self, key) for key in FREE_OF_COST})

    def slowed(self, factor: float) -> Profile:
        """Return a copy in which everything takes `factor` times as long on the NIC's processors."""
        costs = {key: round(getattr(self, key) * factor) for key in OF_PROCESSOR}
        return replace(self, **costs)


IDEAL: Final = Profile()

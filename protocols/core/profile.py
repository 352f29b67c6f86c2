"""Hardware profiles: the costs of NIC and host actions. The ideal profile has no costs, so that only links take time.

The profile of a protocol's hardware, with the sources of its values, is beside the protocol's firmware. Firmware
handles one event after the other (`receive`, `ring`, `tick`, `fetched`, `stored`, `sent`); its actions for an event
cost extra (`transfer`, `send`, `show`). Times are integer nanoseconds; rates are integer bit/s, and 0 means that bytes
take no time; sizes are integer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

SECOND: Final = 10**9

PROCESSOR_COSTS: Final = ("receive", "ring", "tick", "fetched", "stored", "sent", "send", "transfer", "show")
"""The fields for times of the NIC's processors."""

STRUCTURE_FIELDS: Final = (
    "name", "receive_ring", "receive_queues", "steering", "round_robin", "processors", "ahead", "pages_apart", "bus_burst",
    "hosted", "polled", "busy_waiting", "timeslice", "cores", "cores_per_cache",
)  # fmt: skip
"""The fields that describe the structure of NIC and host, and are not costs."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one kind of work. fixed: nanoseconds per call. rate: bit/s; 0: bytes take no time. same_rate: rate
    for bytes that the working core itself touched last; shared_rate: for bytes last touched by a core that shares a
    cache with it; 0: as `rate`. Raises ValueError for negative values."""

    fixed: int = 0
    rate: int = 0
    same_rate: int = 0
    shared_rate: int = 0

    def __post_init__(self) -> None:
        for key in self.__slots__:
            value = getattr(self, key)
            if value < 0:
                raise ValueError(f"{key} must be 0 or more, got {value}")


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs of a NIC and its host. Raises ValueError for invalid values."""

    name: str = "ideal"

    # A host core.
    post: int = 0
    """Pass a descriptor to the NIC, in addition to the time at `write_rate`."""
    write_rate: int = 0
    """Rate of the host's programmed-I/O writes to the NIC."""
    translate: int = 0
    """Ask the kernel for a page's physical address."""
    notice: int = 0
    """Notice a returned descriptor: read it from the NIC's memory."""
    poll: int = 0
    """Poll without success. 0: the simulation's default (`testbed.engine.loop.POLL_TIME`)."""
    interrupt: int = 0
    """Take an interrupt from the NIC and find its reason."""
    pages_apart: bool = False
    """Pages of a buffer are not contiguous in physical memory: each is a DMA transfer of its own."""
    cores: int = 1
    """Cores of the host; a cluster's description may override it."""
    cores_per_cache: int = 1
    """Consecutive cores that share a cache; a cluster's description may override it."""
    work: Mapping[str, Cost] = field(default_factory=dict)
    """Costs of work on host cores, by kind (`host_work`)."""
    timeslice: int = 10_000_000
    """Time slice of programs that share a core. The default is a tick of Linux's 100 Hz timer."""
    hosted: bool = False
    """The firmware runs on the host's cores, in traps, interrupts and softirqs; the NIC only moves frames by DMA. The costs
    and number of the NIC's processors, `interrupt`, `dma_transaction`, `ahead` and `flush` then have no effect."""
    polled: bool = False
    """A hosted NIC has no interrupts: frames wait in it until the host reads them (`HostWork.read_frames`)."""
    busy_waiting: bool = False
    """Waiting programs poll: a core with a program is never idle."""
    receive_queues: int = 1
    """Receive queues of a hosted NIC, each with an interrupt of its own: queue k interrupts core k
    (`Protocol.steering`)."""
    steering: str = ""
    """Name of the hash that selects a frame's queue; empty: the protocol's default."""
    round_robin: bool = False
    """The interrupts of all queues go to the cores in turn."""
    coalescing: int = 0
    """Time for which the NIC waits for further frames before an interrupt."""

    # Between host and NIC.
    doorbell: int = 0
    """From the end of the host's write until the NIC notices it."""
    bus_rate: int = 0
    """Rate of the bus that DMA transfers and the host's reads and writes share. 0: bytes take no time on it. The
    host's accesses use the bus only if this or `bus_transaction` is not 0."""
    bus_transaction: int = 0
    """Overhead of each bus transaction of a DMA transfer, unless `dma_transaction` replaces it."""
    dma_transaction: int = 0
    """Overhead instead of `bus_transaction` for DMA transfers of a NIC that is not hosted; 0: `bus_transaction` applies."""
    bus_burst: int = 0
    """Maximum bytes of a bus transaction; 0: each transfer is one transaction."""

    # The NIC's processors: handling of events ...
    receive: int = 0
    """A frame has arrived."""
    ring: int = 0
    """The host has passed a descriptor."""
    tick: int = 0
    """A deadline has passed."""
    fetched: int = 0
    """A DMA transfer from host memory has finished. The data can be sent afterwards."""
    stored: int = 0
    """A DMA transfer to host memory has finished. Actions that depend on it follow afterwards."""
    sent: int = 0
    """A frame has been handed to the port, where it may still wait for the wire."""
    # ... and actions.
    send: int = 0
    """Pass a frame to the wire."""
    transfer: int = 0
    """Start one DMA transfer."""
    show: int = 0
    """Return a descriptor and make it visible to the host."""

    processors: int = 1
    """1 or 2. With 2, one processor handles received frames, the actions that they cause, and the ends of DMA transfers to
    host memory; the other handles all other events."""
    receive_ring: int = 0
    """Maximum frames that wait for the processor; further frames are lost. 0: no limit."""
    ahead: int = 0
    """Maximum frames whose data is being fetched, or was fetched and is not yet handed to the port. 0: no limit."""

    # The DMA engines, one for each direction.
    fetch: int = 0
    """Set-up time of a transfer from host memory."""
    fetch_rate: int = 0
    """Rate of transfers from host memory."""
    store: int = 0
    """Set-up time of a transfer to host memory."""
    store_rate: int = 0
    """Rate of transfers to host memory."""
    flush: int = 0
    """Time of the host's core to flush the buffer between bus and memory after each transfer in either direction. The
    firmware notices the end of the transfer only afterwards."""

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
    def is_zero_cost(self) -> bool:
        """Whether all costs are 0."""
        return self == Profile(**{key: getattr(self, key) for key in STRUCTURE_FIELDS})

    def slowed(self, factor: float) -> Profile:
        """Return a copy in which all work takes `factor` times as long on the NIC's processors."""
        costs = {key: round(getattr(self, key) * factor) for key in PROCESSOR_COSTS}
        return replace(self, **costs)


IDEAL: Final = Profile()

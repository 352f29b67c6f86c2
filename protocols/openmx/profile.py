"""Hardware costs of the Open-MX multiqueue paper: pairs of quad-core Xeon E5345, Myri-10G in Ethernet mode, Linux 2.6.26.

Goglin, "NIC-assisted Cache-Efficient Receive Stack for Message Passing over Ethernet", Euro-Par 2009; section numbers are
that paper's. Open-MX's driver runs on the host's cores: entered by a system call for each command, and by a softirq for
each frame. The wire is not included: a cluster's description sets its time.

Two constants are calibrated with three rows of table 1 (`paper.toml` names them). Every other value has a source, or is our
choice for a component without a source: a round figure or a count. Table 1 was known when they were chosen, so these values
count as fitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocols.core.host_work import COPY, INTERRUPT, OFFLOAD, RETURN, SOFTIRQ, SWITCH, TRAP, WAKE
from protocols.core.profile import SECOND, Cost, Profile
from protocols.openmx import driver_endpoint
from protocols.openmx.driver_endpoint import DRIVER, LOOKUP
from protocols.openmx.endpoint import EVENT, REQUEST

# The calibrated constants.

MPI_TIME: Final = 1_850
"""CALIBRATED: nanoseconds that Open MPI and Open-MX's library take for a request at sender and receiver, and for its
completion event."""

MULTIQUEUE_TIME: Final = 760
"""CALIBRATED: additional nanoseconds of the NIC's firmware for a received frame with several queues: "the multiqueue
implementation requiring more work in the NIC" (section 4.2)."""

# Processors and memory.

CLOCK: Final = 2_330_000_000
"""Section 4.1: 2.33 GHz."""

LINE_FROM_CORE: Final = 100
"""Nanoseconds. Our choice for a cache line of 64 bytes that another core has written, over the front-side bus."""

LINE_OWN: Final = 1
"""Nanoseconds for a line in the core's own cache, rounded up."""

LINE_SHARED: Final = 6
"""Nanoseconds for a line in the cache that two cores share: its latency of 14 cycles (Intel 64 and IA-32 Architectures
Optimization Reference Manual, table 2-13, Core microarchitecture)."""

LINES: Final = driver_endpoint.STATE_SIZE // 64
"""Our count of the cache lines that a receive handler writes and the next handler, or the library, reads: the endpoint, its
ring, the event, and the tables through which they are found."""

COPY_RATE: Final = 7_000_000_000
"""bit/s at which a core copies a frame's data from memory to memory. Our choice."""

# The kernel. All are our choices: round figures for the cycles of such code.

SYSTEM_CALL: Final = 350  # cycles: sysenter, dispatch, and return
DRIVER_TIME: Final = 700  # ns: allocate a packet, fill in its header, pass it to the NIC's driver
INTERRUPT_TIME: Final = 800  # ns: message-signalled interrupt, its handler, and the softirq's beginning
SOFTIRQ_TIME: Final = 700  # ns: take a frame from the ring, give the NIC another buffer, find the protocol
LOOKUP_TIME: Final = 250  # ns: check a frame, find its endpoint, write the event
RETURN_TIME: Final = 1_000  # ns: end the softirq, unmask the interrupt at the NIC, return to the program
SWITCH_TIME: Final = 2_000  # ns
WAKE_TIME: Final = 5_000
"""Nanoseconds. Our choice; section 4.3: "On modern processors, this wakeup overhead is several microseconds"."""

OFFLOAD_TIME: Final = 350
"""Nanoseconds. Our choice for submitting the copies of one frame to I/OAT, and for its share of polling their completion."""
OFFLOAD_RATE: Final = 20_000_000_000
"""bit/s. Our choice: the engine is faster than the wire."""

# The NIC.

FETCH_TIME: Final = 900
STORE_TIME: Final = 900
"""Nanoseconds of the NIC's processor and DMA for a frame in each direction. Our choices."""
FETCH_RATE: Final = 14_000_000_000
"""bit/s of a PCI Express x8 link (16 Gbit/s), less an eighth for protocol overhead. Our choice."""
STORE_RATE: Final = 10_000_000_000
"""bit/s. Our choice: the rate of the wire."""
DOORBELL: Final = 200
"""Nanoseconds for a write to reach the NIC. Our choice."""


def cycles(count: int) -> int:
    """Return the nanoseconds of a number of cycles, rounded."""
    return round(count * SECOND / CLOCK)


def _line_rate(nanoseconds: int) -> int:
    """Return the rate, in bit/s, of cache lines that take `nanoseconds` each."""
    return 64 * 8 * SECOND // nanoseconds


_SHARED: Final = {
    "rate": _line_rate(LINE_FROM_CORE),
    "same_rate": _line_rate(LINE_OWN),
    "shared_rate": _line_rate(LINE_SHARED),
}

WORK: Final = {
    TRAP: Cost(cycles(SYSTEM_CALL)),
    DRIVER: Cost(DRIVER_TIME),
    INTERRUPT: Cost(INTERRUPT_TIME),
    SOFTIRQ: Cost(SOFTIRQ_TIME),
    LOOKUP: Cost(LOOKUP_TIME, **_SHARED),
    RETURN: Cost(RETURN_TIME),
    WAKE: Cost(WAKE_TIME),
    SWITCH: Cost(SWITCH_TIME),
    COPY: Cost(rate=COPY_RATE),
    OFFLOAD: Cost(OFFLOAD_TIME, OFFLOAD_RATE),
    EVENT: Cost(MPI_TIME, **_SHARED),
    REQUEST: Cost(MPI_TIME),
}

OPENMX_2009: Final = Profile(
    "openmx-2009",
    hosted=True,
    busy_waiting=True,
    cores=8,
    cores_per_cache=2,
    receive_queues=8,
    work=WORK,
    doorbell=DOORBELL,
    fetch=FETCH_TIME,
    fetch_rate=FETCH_RATE,
    store=STORE_TIME + MULTIQUEUE_TIME,
    store_rate=STORE_RATE,
)
"""Multiqueue: eight queues, one for each core."""

OPENMX_2009_SINGLE: Final = replace(OPENMX_2009, name="openmx-2009-single", receive_queues=1, store=STORE_TIME)
"""One interrupt, bound to core 0."""

OPENMX_2009_ROUND_ROBIN: Final = replace(OPENMX_2009_SINGLE, name="openmx-2009-round-robin", round_robin=True)
"""One interrupt, dispatched to all cores in turn."""

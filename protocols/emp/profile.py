"""Profiles of the EMP paper's hardware: a Netgear 620 (Alteon Tigon2) in a PC with a 933 MHz Pentium III.

Shivam, Wyckoff, Panda, "EMP: Zero-copy OS-bypass NIC-driven Gigabit Ethernet Message Passing", SC 2001; section numbers
are that paper's. The wire is not included: a cluster's description sets the time of frames on it.

Two constants are calibrated, by three published values (`paper.toml` names them). Every other value has a source, or is
our choice for a component without a source: a round figure within what the paper allows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocols.core.profile import SECOND, Profile

# The NIC's processor.

NIC_CLOCK: Final = 88_000_000
"""Hz. Section 2: "two MIPS-like microprocessors running at 88 MHz". The firmware of the paper uses one of them: Shivam,
Wyckoff, Panda, "Can User-Level Protocols Take Advantage of Multi-CPU NICs?", IPDPS 2002, abstract."""

RECEIVE_CYCLES: Final = 472
"""Cycles. CALIBRATED: cost of the firmware's handler of an event of the receive path. There are two: a frame has arrived
(it is matched), or the DMA transfer of its data has finished (its collection is updated)."""

OTHER_CYCLES: Final = 218
"""Cycles. CALIBRATED: cost of the handler of any other event.

Section 4: "The core of the code is an event loop [...] which tests for the next pending event and dispatches control to
the appropriate handling routine". Sources of events are the components that section 2 lists beside the processors: the
PCI interface (a descriptor), the timer, two host DMA engines, transmit and receive MAC FIFOs. The paper does not state
the cycles of each. A single cost for all events does not fit: if it yields 880 Mb/s, 4 bytes take 30 us. So there are two
costs, and a message's total follows from its number of events.
"""

# The path from NIC to host.

PCI_CLOCK: Final = 66_000_000
"""Hz."""
PCI_WIDTH: Final = 8
"""Bytes. Section 5.1: "a 64-bit 66 MHz PCI bus"."""

PCI_TRANSACTION: Final = 8
"""Clocks of a transaction in addition to its data. Our choice: half of the 16 that a target may take for the first word
(PCI Local Bus Specification 2.2, section 3.5.1.1); one of them is for the address."""

PCI_LATENCY_TIMER: Final = 64
"""Clocks for which a master may keep the bus, which limits a burst: the default that Linux sets for a bus master
(`pcibios_set_master`)."""

DMA_SETUP: Final = 1_000
"""Nanoseconds. Section 3.3: "DMA operations (1-3 us per transfer)", of a few bytes. The lower end is the cost on a free
bus; waiting for a busy bus results from the model of the bus."""

PIO_WRITE: Final = 4
"""Clocks for 4 bytes. Our count: address, its decoding (medium DEVSEL), data, turn-around."""

PIO_READ: Final = 20
"""Clocks for 4 bytes: those of PIO_WRITE, and the 16 that a target may take for the first word (see
`PCI_TRANSACTION`)."""

# The host.

POST: Final = 500
"""Nanoseconds. Our choice: some 500 cycles of a 933 MHz processor for the library to post a descriptor. The cost of
MPI's own layers is not included: the paper does not state it."""

TRANSLATE: Final = 500
"""Nanoseconds for each page. Section 3.2: "the per-page mapping cost is less than a microsecond"; our choice: the middle."""


def cycles_to_ns(count: int, clock: int = NIC_CLOCK) -> int:
    """Convert a number of cycles of a clock (Hz) to nanoseconds, rounded."""
    return round(count * SECOND / clock)


_RECEIVE: Final = cycles_to_ns(RECEIVE_CYCLES)
_OTHER: Final = cycles_to_ns(OTHER_CYCLES)

EMP_2001: Final = Profile(
    "emp-2001",
    post=POST,
    write_rate=PCI_CLOCK * 32 // PIO_WRITE,
    translate=TRANSLATE,
    notice=cycles_to_ns(PIO_READ, PCI_CLOCK),
    poll=cycles_to_ns(PIO_READ, PCI_CLOCK),  # a read of the stat field of a descriptor that the NIC still owns
    pages_apart=True,  # section 4.2: "the physical address of every page in a transfer must be passed to the NIC"
    bus_rate=PCI_CLOCK * PCI_WIDTH * 8,
    bus_transaction=cycles_to_ns(PCI_TRANSACTION, PCI_CLOCK),
    bus_burst=PCI_LATENCY_TIMER * PCI_WIDTH,
    receive=_RECEIVE,
    stored=_RECEIVE,
    ring=_OTHER,
    tick=_OTHER,
    fetched=_OTHER,
    sent=_OTHER,
    processors=1,
    ahead=1,  # section 3.1.1: "it pulls the data from the host one frame at a time and puts it on the wire"
    fetch=DMA_SETUP,
    store=DMA_SETUP,
)

EMP_2002: Final = replace(EMP_2001, name="emp-2002", processors=2)
"""Firmware with the receive path on the NIC's second processor, as in the IPDPS 2002 paper."""

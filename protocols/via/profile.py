"""Hardware costs of the LAM/MPI over VIA paper: PCs with two 450 MHz Pentium II, DC21140 Fast Ethernet, M-VIA 0.9.3.

Bertozzi, Panella, Reggiani, "Design of a VIA based communication protocol for LAM/MPI Suite"; section numbers are that
paper's. M-VIA does not use a VIA NIC: its kernel agent runs on the host, entered by a trap for each doorbell and by the
NIC's interrupt for each frame (section 2.1), so the profile is hosted. The wire and the switch are not included: the
cluster description sets their times.

Two constants are calibrated with three rows of table 1 (`paper.toml` names them). Every other value has a source, or is
our choice for a component without a source: a round figure or a count. Table 1 was known when they were chosen, and so
was the difference between TCP and VIA when the costs of TCP were chosen, so these values count as fitted.
"""

from __future__ import annotations

from typing import Final

from protocols.core.host_work import COPY, INTERRUPT, SOFTIRQ, SWITCH, TRAP
from protocols.core.profile import SECOND, Cost, Profile
from protocols.mpi.via.endpoint import MPI
from protocols.via.card import AGENT, REGISTER

# The calibrated constants.

INTERRUPT_TIME: Final = 27_000
"""CALIBRATED: nanoseconds from a frame in host memory until the kernel agent handles it. The paper does not split this
time: it includes the NIC's interrupt request, the IO-APIC, entry into the driver's handler, and the wake-up of the
waiting program."""

MPI_TIME: Final = 2_250
"""CALIBRATED: nanoseconds of LAM's layers and of the protocol's library (sections 3 and 4) for a message, once at its
sender and once at its receiver."""

# Processors and memory.

CLOCK: Final = 450_000_000
"""Section 5: "four dual 450 MHz Pentium II PCs"."""

CACHE_CLOCK: Final = CLOCK // 2
"""The second-level cache of a Pentium II works at half of the processor's clock, 8 bytes wide, in lines of 32 bytes (Intel,
"Pentium II Processor at 350 MHz, 400 MHz, and 450 MHz", data sheet)."""

LINE: Final = 32
"""Bytes of a cache line."""

BUS_CLOCK: Final = 100_000_000
LINE_FROM_MEMORY: Final = 11
"""Clocks of the processor bus for a line from memory or from the other processor's cache: 8-1-1-1, as the 440BX chip set
reads an open page of SDRAM. Our count."""

LINE_IN_CACHE: Final = 12
"""Clocks of the cache for a hit: first access and three more of 8 bytes, then the write-back from the first-level
cache. Our count."""

# The kernel.

TRAP_CYCLES: Final = 300
"""Our choice for entering the kernel by a trap gate and returning, without a system call's dispatch ("fast trap")."""

AGENT_INSTRUCTIONS: Final = 900
"""Our choice: the kernel agent checks a descriptor, finds the pages of its memory, and fills in header and NIC
descriptor; or, for a received frame, finds VI, descriptor and destination."""

PAGE_CYCLES: Final = 1_350
"""Our choice for pinning one page of 4096 bytes and adding it to the agent's table, or for the reverse: 3 us."""

SYSTEM_CALL_CYCLES: Final = 450
"""Our choice: 1 us for the system call of a registration."""

SWITCH_TIME: Final = 5_000
"""Nanoseconds. Our choice for a context switch: registers, address space, and cold caches."""

TICK: Final = 10_000_000
"""Nanoseconds of a time slice: one tick of Linux 2.2's timer of 100 Hz."""

# NIC and PCI.

PCI_CLOCK: Final = 33_000_000
PCI_WIDTH: Final = 4
"""Bytes. The DC21140 is a bus master on PCI of 32 bits at 33 MHz (Digital Semiconductor 21140A, "PCI Fast Ethernet LAN
Controller, Hardware Reference Manual")."""

PCI_TRANSACTION: Final = 8
"""Clocks in addition to the data, as for EMP's host: half of the 16 that a target may take for the first word (PCI Local
Bus Specification 2.2, section 3.5.1.1)."""

PCI_BURST: Final = 16
"""Longest burst of the NIC in words of 32 bits (field PBL of its CSR0). Our choice among the possible values: the value that
Linux's driver sets on a Pentium II is unknown to us."""

PIO_WRITE: Final = 4
"""Clocks for 4 bytes, as for EMP's host: address, its decoding, data, turn-around. For a doorbell the agent writes one
word, the NIC's poll demand (CSR1)."""

DESCRIPTOR_BYTES: Final = 16
"""Size of a NIC descriptor, which the NIC reads from host memory before a frame, and writes back after it (manual, section
4)."""

INSTRUCTIONS_PER_CYCLE: Final = 1
"""Our choice for kernel code. The Pentium II can retire three instructions per cycle if all are in its caches."""


def cycles(count: int, clock: int = CLOCK) -> int:
    """Return the nanoseconds of a number of cycles of a clock (Hz), rounded."""
    return round(count * SECOND / clock)


def copy_rate(line_cycles: int, clock: int) -> int:
    """Return the bit/s of a copy. line_cycles: cycles to read and write a cache line. clock: Hz."""
    return LINE * 8 * clock // line_cycles


_WORDS: Final = DESCRIPTOR_BYTES // PCI_WIDTH
_DESCRIPTOR_TIME: Final = cycles(PCI_TRANSACTION + _WORDS, PCI_CLOCK)

WORK: Final = {
    TRAP: Cost(cycles(TRAP_CYCLES)),
    INTERRUPT: Cost(INTERRUPT_TIME),
    SOFTIRQ: Cost(0),  # M-VIA handles a frame in the interrupt
    SWITCH: Cost(SWITCH_TIME),
    COPY: Cost(
        rate=copy_rate(2 * LINE_FROM_MEMORY, BUS_CLOCK),
        same_rate=copy_rate(2 * LINE_IN_CACHE, CACHE_CLOCK),
    ),
    AGENT: Cost(cycles(AGENT_INSTRUCTIONS // INSTRUCTIONS_PER_CYCLE)),
    REGISTER: Cost(cycles(SYSTEM_CALL_CYCLES), 4096 * 8 * CLOCK // PAGE_CYCLES),
    MPI: Cost(MPI_TIME),
}

LAM_VIA_2000: Final = Profile(
    "lam-via-2000",
    hosted=True,
    cores=2,
    timeslice=TICK,
    work=WORK,
    doorbell=cycles(PIO_WRITE, PCI_CLOCK),
    bus_rate=PCI_CLOCK * PCI_WIDTH * 8,
    bus_transaction=cycles(PCI_TRANSACTION, PCI_CLOCK),
    bus_burst=PCI_BURST * PCI_WIDTH,
    fetch=_DESCRIPTOR_TIME,
    store=_DESCRIPTOR_TIME,
)

"""Profiles of the AM-II paper's hardware: a LANai on the SBus of a Sun UltraSPARC workstation of the Berkeley NOW.

Chun, Mainwaring, Culler, "Virtual Network Transport Protocols for Myrinet", IEEE Micro 18(1), 1998; section names are
that paper's. Most digits are illegible in the copy available to us. The paper describes the hardware as a NIC with one
embedded processor, "a single host SBus DMA engine, and independent network send and receive DMA engines". The wire and
the switches are not included: a cluster's description sets the time of frames on them.

A constant is FITTED: adjusted to rows of `paper.toml`; SOURCED: stated by the named source; or CHOSEN: our assumption,
without a citable source. None is measured. SBUS_OVERHEAD is fitted to the two values of the paper's abstract; STEP was
chosen so that this fit is possible. A chosen constant has no evidence; results that depend on it predict only shapes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocols.core.profile import SECOND, Profile

# The bus between host and NIC.

SBUS_CLOCK: Final = 25_000_000
"""Hz. SOURCED, with SBUS_WIDTH."""
SBUS_WIDTH: Final = 8
"""Bytes. SOURCED: IEEE 1496 (SBus) as extended by UltraSPARC: 25 MHz, with 64-bit transfers at most 200 MB/s."""

SBUS_BURST: Final = 64
"""Bytes. SOURCED: the longest burst of IEEE 1496. The processor's block loads and stores (UltraSPARC's VIS) have the
same length."""

SBUS_OVERHEAD: Final = 39
"""Clocks. FITTED: overhead of a transaction of either master: arbitration, address translation, and waiting for
memory."""

COHERENCE: Final = 8
"""Additional clocks of a transaction of consistent DMA: the buffer in the bus bridge is kept consistent "automatically
on memory transactions" (section on contention-free performance). CHOSEN: equal to the clocks of a burst's data."""

FLUSH: Final = 5_000
"""Nanoseconds to flush that buffer by a system call after a transfer of streaming DMA (section on contention-free
performance). CHOSEN: some 800 cycles of a 167 MHz UltraSPARC, to enter and leave the kernel and to wait for the
bridge."""

# The NIC's processor.

LANAI_CLOCK: Final = 37_500_000
"""Hz. CHOSEN: the clock commonly given for NOW's LANai 4.1; the paper's own digits are illegible. Only the times of STEP
and GUARD depend on it."""

STEP: Final = 128
"""Cycles of each step of the firmware: handle one event of any kind, with the search for its object (`receive`, `ring`,
`tick`, `fetched`, `stored`); pass a packet to the wire (`send`); check a packet and show its message to the host (`show`).
Handling the end of a transmission and starting a DMA transfer cost nothing. CHOSEN: a power of two for which SBUS_OVERHEAD
reproduces both fitted values."""

GUARD: Final = 32
"""Cycles, included in STEP, of the protection checks before a message is shown to the host. CHOSEN."""

# The host.

POST: Final = 500
"""Nanoseconds. CHOSEN: some 80 cycles of a 167 MHz UltraSPARC for the library to send a message."""

HANDLE: Final = 300
"""Nanoseconds. CHOSEN: some 50 cycles for the library to reach a message's handler."""

INTERRUPT: Final = 30_000
"""Nanoseconds from an interrupt until the segment driver has determined its reason. CHOSEN."""

MAP: Final = 2_000
"""Nanoseconds for the kernel to map a page for the NIC. CHOSEN."""


def cycles_to_ns(count: int, clock: int = SBUS_CLOCK) -> int:
    """Convert a number of cycles of a clock (Hz) to nanoseconds, rounded."""
    return round(count * SECOND / clock)


_BURST: Final = SBUS_OVERHEAD + SBUS_BURST // SBUS_WIDTH  # clocks of a burst
_WORD: Final = SBUS_OVERHEAD + 1  # clocks of a word
_STEP: Final = cycles_to_ns(STEP, LANAI_CLOCK)

NOW_1998: Final = Profile(
    "now-1998",
    post=POST,
    write_rate=SBUS_CLOCK * SBUS_BURST * 8 // _BURST,
    translate=MAP,
    notice=cycles_to_ns(_WORD + _BURST) + HANDLE,  # read an entry's first byte, then the message
    poll=cycles_to_ns(_WORD),  # read the first byte of a free entry
    interrupt=INTERRUPT,
    bus_rate=SBUS_CLOCK * SBUS_WIDTH * 8,
    bus_transaction=cycles_to_ns(SBUS_OVERHEAD),
    flush=FLUSH,
    bus_burst=SBUS_BURST,
    receive=_STEP,
    ring=_STEP,
    tick=_STEP,
    fetched=_STEP,
    stored=_STEP,
    send=_STEP,
    show=_STEP,
    ahead=1,  # "store-and-forward": the firmware does not pipeline bulk data (section "LogP characterisation")
)

NOW_1998_CONSISTENT: Final = replace(
    NOW_1998, name="now-1998-consistent", dma_transaction=cycles_to_ns(SBUS_OVERHEAD + COHERENCE), flush=0
)
"""Consistent DMA instead of streaming DMA."""

NOW_1998_UNGUARDED: Final = replace(NOW_1998, name="now-1998-unguarded", show=cycles_to_ns(STEP - GUARD, LANAI_CLOCK))
"""Firmware without protection checks, such as GAM. Use it with `Settings.guarded` = False."""

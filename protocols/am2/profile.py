"""Hardware costs of AM-II's paper: a LANai on the SBus of a Sun UltraSPARC workstation of the Berkeley NOW.

Chun, Mainwaring, Culler, "Virtual Network Transport Protocols for Myrinet", IEEE Micro 18(1), 1998; section names are
that paper's. Most digits are illegible in the copy available to us. It describes the hardware as a NIC with one
embedded processor, "a single host SBus DMA engine, and independent network send and receive DMA engines". The wire and
the switches are not included: a cluster's description sets the time of frames on them.

A constant is FITTED: adjusted until a row of `paper.toml` comes out; SOURCED: stated by the source that is named; or
CHOSEN: a round figure of ours for a component without a source. None is measured. One is fitted, by the two values of the
paper's abstract. A chosen one is as little known as a fitted one: rows that depend on it predict no more than a shape.
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
"""Bytes. SOURCED: the longest burst of IEEE 1496. The processor moves as many by one block load or store (UltraSPARC's
VIS)."""

SBUS_OVERHEAD: Final = 39
"""FITTED: overhead of a transaction in clocks, for either master: arbitration, address translation, and waiting for
memory."""

COHERENCE: Final = 8
"""Clocks more of each transaction of consistent DMA, whose buffer in the bus bridge is kept consistent "automatically on
memory transactions" (section on contention-free performance). CHOSEN: the clocks of the data itself."""

FLUSH: Final = 5_000
"""Nanoseconds of streaming DMA to flush that buffer by a system call when a transfer has ended (the same). CHOSEN: some
800 cycles of a 167 MHz UltraSPARC, to enter and leave the kernel and to wait for the bridge."""

# The NIC's processor.

LANAI_CLOCK: Final = 37_500_000
"""Hz. CHOSEN: the clock commonly given for NOW's LANai 4.1; the paper's own digits are lost. Only the time that it
makes together with STEP has an effect."""

STEP: Final = 128
"""Cycles of each step of the firmware: find an event and its object; read a message from its endpoint and make a
packet; check a packet and put it into its endpoint; start an engine. CHOSEN, with the rows in view: a power of two with
which one fitted constant fits both values."""

GUARD: Final = 32
"""The part of STEP for the protection checks when a message is put into its endpoint. CHOSEN."""

# The host.

POST: Final = 500
"""Nanoseconds. CHOSEN: some 80 cycles of a 167 MHz UltraSPARC for the library to send a message."""

HANDLE: Final = 300
"""Nanoseconds. CHOSEN: some 50 cycles for the library to reach a message's handler."""

INTERRUPT: Final = 30_000
"""Nanoseconds until the segment driver knows the reason of an interrupt. CHOSEN."""

MAP: Final = 2_000
"""Nanoseconds for the kernel to make a page reachable for the NIC. CHOSEN."""


def clocks(count: int, clock: int = SBUS_CLOCK) -> int:
    """Return the nanoseconds of a number of cycles of a clock (Hz), rounded."""
    return round(count * SECOND / clock)


_BURST: Final = SBUS_OVERHEAD + SBUS_BURST // SBUS_WIDTH  # clocks
_WORD: Final = SBUS_OVERHEAD + 1
_STEP: Final = clocks(STEP, LANAI_CLOCK)

NOW_1998: Final = Profile(
    "now-1998",
    post=POST,
    write_rate=SBUS_CLOCK * SBUS_BURST * 8 // _BURST,
    translate=MAP,
    notice=clocks(_WORD + _BURST) + HANDLE,  # read that there is a message, then the message
    poll=clocks(_WORD),  # read that there is none
    interrupt=INTERRUPT,
    bus_rate=SBUS_CLOCK * SBUS_WIDTH * 8,
    bus_transaction=clocks(SBUS_OVERHEAD),
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
    NOW_1998, name="now-1998-consistent", dma_transaction=clocks(SBUS_OVERHEAD + COHERENCE), flush=0
)
"""Consistent DMA instead of streaming DMA."""

NOW_1998_UNGUARDED: Final = replace(NOW_1998, name="now-1998-unguarded", show=clocks(STEP - GUARD, LANAI_CLOCK))
"""Firmware without protection checks (`Settings.guarded`), as GAM."""

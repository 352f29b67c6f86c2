"""Hardware costs of AM-II's paper: a LANai on the SBus of a Sun UltraSPARC workstation of the Berkeley NOW.

Chun, Mainwaring, Culler, "Virtual Network Transport Protocols for Myrinet", IEEE Micro 18(1), 1998; section names are
that paper's. Most digits are illegible in the copy available to us. It describes the hardware as a NIC with one
embedded processor, "a single host SBus DMA engine, and independent network send and receive DMA engines". The wire and
the switches are not included: a cluster's description sets the time of frames on them.

One constant is calibrated, by the two values of the paper's abstract (`paper.toml`). Every other value has a source, or
is our choice for a component without one: a round figure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocols.core.profile import SECOND, Profile

# The bus between host and NIC.

SBUS_CLOCK: Final = 25_000_000
SBUS_WIDTH: Final = 8
"""Bytes. IEEE 1496 (SBus) as extended by UltraSPARC: 25 MHz, with 64-bit transfers at most 200 MB/s."""

SBUS_BURST: Final = 64
"""Bytes: the longest burst of IEEE 1496. The processor moves as many by one block load or store (UltraSPARC's VIS)."""

SBUS_OVERHEAD: Final = 41
"""CALIBRATED: overhead of a transaction in clocks, for either master: arbitration, address translation, and waiting for
memory, which is kept consistent ("consistent and streaming SBus DMA")."""

# The NIC's processor.

LANAI_CLOCK: Final = 37_500_000
"""Hz. Our choice: the clock commonly given for NOW's LANai 4.1; the paper's own digits are lost. Only the time that it
makes together with STEP has an effect."""

STEP: Final = 128
"""Cycles of each step of the firmware: find an event and its object; read a message from its endpoint and make a
packet; check a packet and put it into its endpoint; start an engine. Our choice, a power of two: with it one calibrated
constant fits both values."""

GUARD: Final = 32
"""The part of STEP for the protection checks when a message is put into its endpoint. Our choice."""

# The host.

POST: Final = 500
"""Nanoseconds. Our choice: some 80 cycles of a 167 MHz UltraSPARC for the library to send a message."""

HANDLE: Final = 300
"""Nanoseconds. Our choice: some 50 cycles for the library to reach a message's handler."""

INTERRUPT: Final = 30_000
"""Nanoseconds until the segment driver knows the reason of an interrupt. Our choice."""

MAP: Final = 2_000
"""Nanoseconds for the kernel to make a page reachable for the NIC. Our choice."""


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

NOW_1998_UNGUARDED: Final = replace(NOW_1998, name="now-1998-unguarded", show=clocks(STEP - GUARD, LANAI_CLOCK))
"""Firmware without protection checks (`Settings.guarded`), as GAM."""

"""What the hardware of AM-II's paper costs: a LANai on the SBus of a Sun UltraSPARC workstation of the Berkeley NOW.

Chun, Mainwaring, Culler, "Virtual Network Transport Protocols for Myrinet", IEEE Micro 18(1), 1998; sections are of it. Of
the copy that we could read most digits are lost: what it has of the hardware is that the NIC has one embedded processor,
"a single host SBus DMA engine, and independent network send and receive DMA engines". The wire and the switches are not
here: frames take their time there by the cluster's description.

One constant is calibrated, by the two values of the paper's abstract (`paper.toml`). Everything else has a source, or is our
choice for a component of which there is none: a round figure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocols.core.profile import SECOND, Profile

# The bus between host and NIC.

SBUS_CLOCK: Final = 25_000_000
SBUS_WIDTH: Final = 8
"""Bytes. IEEE 1496 (SBus) and what UltraSPARC made of it: 25 MHz, with 64-bit transfers 200 MB/s at most."""

SBUS_BURST: Final = 64
"""Bytes: the longest burst of IEEE 1496. The processor moves as many by one block load or store (UltraSPARC's VIS)."""

SBUS_OVERHEAD: Final = 41
"""CALIBRATED: clocks that a transaction takes beside its data, whoever is its master: arbitration, translation of the
address, and what is waited for memory, which is kept consistent ("consistent and streaming SBus DMA")."""

# The NIC's processor.

LANAI_CLOCK: Final = 37_500_000
"""Hz. Our choice; it is what is said of NOW's LANai 4.1, but the paper's own digits are lost. Together with the next it
makes a time: only that has an effect."""

STEP: Final = 128
"""Cycles of each step of the firmware: to find that something has come and what it belongs to, to read a message from its
endpoint and make a packet of it, to check one and put it into its endpoint, to start an engine. Our choice, a power of two:
with it one calibrated constant does for both values."""

GUARD: Final = 32
"""Of these, for the checks of protection when a message is put into its endpoint. Our choice."""

# The host.

POST: Final = 500
"""Nanoseconds. Our choice: some 80 of a 167 MHz UltraSPARC's cycles for what the library does to send a message."""

HANDLE: Final = 300
"""Nanoseconds. Our choice: some 50 for what it does until a message's handler is called."""

INTERRUPT: Final = 30_000
"""Nanoseconds until the segment driver knows why it was interrupted. Our choice."""

MAP: Final = 2_000
"""Nanoseconds for the kernel to let the NIC reach a page. Our choice."""


def clocks(count: int, clock: int = SBUS_CLOCK) -> int:
    """Nanoseconds that so many clocks (Hz) take, rounded."""
    return round(count * SECOND / clock)


_BURST: Final = SBUS_OVERHEAD + SBUS_BURST // SBUS_WIDTH  # clocks
_WORD: Final = SBUS_OVERHEAD + 1
_STEP: Final = clocks(STEP, LANAI_CLOCK)

NOW_1998: Final = Profile(
    "now-1998",
    post=POST,
    write_rate=SBUS_CLOCK * SBUS_BURST * 8 // _BURST,
    translate=MAP,
    notice=clocks(_WORD + _BURST) + HANDLE,  # that there is one; the message
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
"""With firmware that makes no checks of protection (`Settings.guarded`): GAM did not."""

"""By what a NIC that starts again is told from its former self."""

from __future__ import annotations

import time

from protocols.core.firmware import FIRST


def incarnation() -> int:
    """Milliseconds since the machine's start, as a serial number of 32 bits that is never 0, and never FIRST: it is not
    counted."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000) % (0xFFFF_FFFF - FIRST) + FIRST + 1

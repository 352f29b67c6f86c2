"""Incarnation numbers, which distinguish a restarted NIC from its predecessor."""

from __future__ import annotations

import time

from protocols.core.firmware import FIRST


def incarnation() -> int:
    """Return the milliseconds since boot as a 32-bit serial number; never 0 nor FIRST, at which simulated NICs start
    to count."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000) % (0xFFFF_FFFF - FIRST) + FIRST + 1

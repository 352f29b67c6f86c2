"""Processors of a benchmark's processes: one for the sender, one for the relay and the receiver."""

import os

_AVAILABLE = sorted(os.sched_getaffinity(0))

SENDER = _AVAILABLE[0]
RELAY = RECEIVER = _AVAILABLE[-1]
ANYWHERE = -1
"""Any processor."""

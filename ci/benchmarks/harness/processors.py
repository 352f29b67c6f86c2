"""Processors of a benchmark's processes: one for the sender, one for the relay and the receiver."""

import os

_OURS = sorted(os.sched_getaffinity(0))

SENDER = _OURS[0]
RELAY = RECEIVER = _OURS[-1]
ANYWHERE = -1
"""Any processor."""

"""Who runs where: what sends has a processor for itself, and so has the relay, with whatever receives."""

import os

_OURS = sorted(os.sched_getaffinity(0))

SENDER = _OURS[0]
RELAY = RECEIVER = _OURS[-1]
ANYWHERE = -1
"""Wherever the kernel puts it."""

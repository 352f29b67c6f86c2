"""Types of `native_frames.c`, which implements the classes of `interpreted_frames` in C."""

from testbed.kernel.interpreted_frames import Arena as Arena
from testbed.kernel.interpreted_frames import FrameCalls as FrameCalls

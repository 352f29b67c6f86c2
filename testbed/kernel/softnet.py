"""Frames that the kernel dropped between a sender and a receiver on this machine: /proc/net/softnet_stat.

A frame that crosses a veth pair waits in the backlog of the processor that sent it, and is dropped if the backlog is full
(net.core.netdev_max_backlog). Drops are counted per processor for the whole machine: every network namespace shows the
same numbers. Drops at a full socket are counted by that socket instead.

The file has one line for each processor that is online, with columns of 32 bits in hexadecimal. The second column counts the
drops, on every kernel. Later kernels have appended columns to the first 9: received_rps, flow_limit_count, the backlog's
length with the processor's number (5.x), the lengths of its two queues (6.x). On kernels without the number, the line's
position is used. Source: softnet_seq_show in net/core/net-procfs.c, earlier in net/core/dev.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FILE: Final = Path("/proc/net/softnet_stat")
# Indexes of columns
_DROPPED: Final = 1
_PROCESSOR: Final = 12

_MODULUS: Final = 1 << 32  # of the counters


def read_drops() -> dict[int, int]:
    """Read the number of dropped frames since boot, by processor."""
    return parse(_FILE.read_text())


def parse(text: str) -> dict[int, int]:
    """Parse /proc/net/softnet_stat; return the number of dropped frames by processor."""
    dropped = {}
    for index, line in enumerate(text.splitlines()):
        columns = line.split()
        processor = int(columns[_PROCESSOR], 16) if len(columns) > _PROCESSOR else index
        dropped[processor] = int(columns[_DROPPED], 16)
    return dropped


def drops_between(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Return the number of frames dropped between two readings of `read_drops`. The drops of a processor that went offline
    meanwhile are missing; of one that came online, all drops are included."""
    return sum((count - before.get(processor, 0)) % _MODULUS for processor, count in after.items())

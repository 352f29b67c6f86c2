"""Frames that the kernel dropped between a sender and a receiver on this machine: /proc/net/softnet_stat.

A frame that crosses a veth pair waits in the backlog of the processor that sent it, and is dropped where that has no room
(net.core.netdev_max_backlog). Drops are counted per processor for the whole machine: every network namespace shows the
same numbers. Drops at a full socket are counted by that socket instead.

One line for each processor that is on, columns of 32 bits in hexadecimal. The second is the drops, on every kernel. Later
kernels have appended columns to the first 9: received_rps, flow_limit_count, the backlog's length with the processor's
number (5.x), the lengths of its two queues (6.x). Without the number, a line's position stands for it. Source:
softnet_seq_show in net/core/net-procfs.c, earlier in net/core/dev.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FILE: Final = Path("/proc/net/softnet_stat")
_DROPPED: Final = 1
_PROCESSOR: Final = 12
_WRAP: Final = 1 << 32


def drops() -> dict[int, int]:
    """Read the frames dropped until now, by processor."""
    return parse(_FILE.read_text())


def parse(text: str) -> dict[int, int]:
    """Parse /proc/net/softnet_stat: dropped frames by processor."""
    dropped = {}
    for index, line in enumerate(text.splitlines()):
        columns = line.split()
        processor = int(columns[_PROCESSOR], 16) if len(columns) > _PROCESSOR else index
        dropped[processor] = int(columns[_DROPPED], 16)
    return dropped


def risen(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Return the frames dropped in between. A processor that went offline meanwhile is not counted; of one that came
    online, all drops are."""
    return sum((count - before.get(processor, 0)) % _WRAP for processor, count in after.items())

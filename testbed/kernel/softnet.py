"""What the kernel lost between a sender and a receiver on this machine: /proc/net/softnet_stat.

Whatever crosses a veth pair waits in the backlog of the processor that sent it; a frame for which that has no room
(net.core.netdev_max_backlog) is dropped. It is counted here, per processor and for the whole machine: a network namespace
shows the same numbers. Frames that get past it and find a socket full are told by that socket instead.

One line for each processor that is on, columns of 32 bits in hexadecimal. The second is what was dropped, on every kernel;
what came with time stands behind: 9 columns at first, then received_rps, flow_limit_count, the backlog's length with the
processor's number (5.x), the lengths of its two queues (6.x). Where the number is not told, a line's place must do. Source:
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
    """Frames dropped until now, by processor."""
    return parsed(_FILE.read_text())


def parsed(text: str) -> dict[int, int]:
    found = {}
    for place, line in enumerate(text.splitlines()):
        columns = line.split()
        processor = int(columns[_PROCESSOR], 16) if len(columns) > _PROCESSOR else place
        found[processor] = int(columns[_DROPPED], 16)
    return found


def risen(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Frames dropped in between. What a processor dropped that has gone meanwhile is not known; all that one says that has
    come is counted."""
    return sum((count - before.get(processor, 0)) % _WRAP for processor, count in after.items())

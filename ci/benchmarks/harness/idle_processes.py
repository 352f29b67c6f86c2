"""Wait until processes are idle, judged by their CPU time."""

import time
from collections.abc import Collection
from pathlib import Path

INTERVAL = 0.05  # s: a process that uses no CPU time for this long is idle
_TIMEOUT = 30.0  # s


def wait_until_idle(pids: Collection[int]) -> None:
    """Wait until none of the processes has used CPU time for INTERVAL. Raises TimeoutError."""
    deadline, previous = time.monotonic() + _TIMEOUT, -1
    while (used := sum(map(_cpu_time, pids))) != previous:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes that should wait still use CPU time after {_TIMEOUT:g} s")
        previous = used
        time.sleep(INTERVAL)


def _cpu_time(pid: int) -> int:
    """Return the CPU time of a process, nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

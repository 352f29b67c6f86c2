"""Wait until processes are idle, judged by their processor time."""

import time
from collections.abc import Collection
from pathlib import Path

GLANCE = 0.05  # s, in which who rests uses no processor
_TIMEOUT = 30.0  # s


def come_to_rest(pids: Collection[int]) -> None:
    """Wait until none of these processes has used a processor for a while. TimeoutError where they never do."""
    until, used = time.monotonic() + _TIMEOUT, -1
    while (now := sum(map(_used, pids))) != used:
        if time.monotonic() > until:
            raise TimeoutError(f"after {_TIMEOUT:g} s processes that should wait are still at work")
        used = now
        time.sleep(GLANCE)  # in which it is seen whether they work


def _used(pid: int) -> int:
    """Nanoseconds of processor time."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

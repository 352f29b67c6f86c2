"""Progress of a run's programs: the time of each one's last progress, in memory that the processes share.

Progress is the end of a transfer, done or failed, that a NIC reports to its host (`Nic.post_completion`), and the end of a
program. Nothing else counts, since everything else can go on forever in a run that makes no progress: frames
retransmitted to a dead peer, steps of a task that polls, answered probes (`Host.completed`), timers, a loop that
computes. So a run without progress is stuck, or its programs compute, or move one message, for longer than the limit
that the caller sets.

Reading the times disturbs no process: it needs no signal and no message, and works on processes that are stopped or spin.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

from protocols.core.firmware import Host

_SPLIT_DRIVER: Final = 8  # words of 8 bytes: two processors do not take one cache line from each other


class Progress:
    """The times of each program's last progress, shared with processes that are forked later."""

    def __init__(self, programs: int) -> None:
        self._memory = mmap.mmap(-1, programs * _SPLIT_DRIVER * 8)
        self._times = memoryview(self._memory).cast("Q")

    def close(self) -> None:
        """Unmap the memory in this process; the others keep it."""
        self._times.release()
        self._memory.close()

    def last(self) -> list[int]:
        """Return when a transfer of each program ended last, in nanoseconds of the monotonic clock; 0: none has."""
        return self._times[::_SPLIT_DRIVER].tolist()

    def watched(self, program: int, host: Host) -> Host:
        """Wrap a host library for the NIC below it, so that the end of each transfer sets this program's time."""
        return _Watched(host, self._times[program * _SPLIT_DRIVER : (program + 1) * _SPLIT_DRIVER])


class _Watched:
    """A wrapped host library. It costs a call and a reading of the clock for each transfer, and nothing for a frame."""

    __slots__ = ("completed", "library", "waiting")

    def __init__(self, host: Host, ended: memoryview[int]) -> None:
        tell, now = host.completed, time.monotonic_ns

        def completed(index: int) -> bool | None:
            if tell(index) is False:
                return False
            ended[0] = now()
            return None

        self.completed = completed
        self.library = host
        self.waiting = host.waiting

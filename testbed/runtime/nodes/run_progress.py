"""Progress of a run's programs: the time at which each program's last transfer ended, in memory that the processes share.

Progress is the end of a transfer, successful or failed, that a NIC reports to its host (`Nic.post_completion`), and the end
of a program. Nothing else counts, since everything else can continue forever in a run that is stuck: frames retransmitted
to a dead peer, steps of a task that polls, answered probes (`Host.on_completion`), timers, a loop that computes. So a run
without progress is stuck, or its programs compute or transfer one message for longer than the limit that the caller sets.

Reading the times disturbs no process: it needs no signal and no message, and works on processes that are stopped or spin.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

from protocols.core.firmware import Host

_WORDS_APART: Final = 8  # words of 8 bytes from one program's time to the next, so that each has its own cache line


class Progress:
    """The time of each program's last progress, shared with processes that are forked later."""

    def __init__(self, programs: int) -> None:
        self._memory = mmap.mmap(-1, programs * _WORDS_APART * 8)
        self._times = memoryview(self._memory).cast("Q")

    def close(self) -> None:
        """Unmap the memory in this process; it stays mapped in the others."""
        self._times.release()
        self._memory.close()

    def last_times(self) -> list[int]:
        """Return the time at which each program's last transfer ended, monotonic nanoseconds; 0: no transfer has ended."""
        return self._times[::_WORDS_APART].tolist()

    def wrap(self, program: int, host: Host) -> Host:
        """Wrap a host library for its NIC, so that the end of each transfer sets a program's time. program: index of the
        program."""
        return _ProgressHost(host, self._times[program * _WORDS_APART : (program + 1) * _WORDS_APART])


class _ProgressHost(Host):
    """A wrapped host library. It costs a call and a reading of the clock per transfer, and nothing per frame."""

    __slots__ = ("_last_time", "library")

    def __init__(self, host: Host, last_time: memoryview[int]) -> None:
        """last_time: one word, the time of the last progress."""
        self.library: Final = host
        self._last_time = last_time

    def on_completion(self, index: int) -> bool | None:
        if self.library.on_completion(index) is False:
            return False
        self._last_time[0] = time.monotonic_ns()
        return None

    def pending_work(self) -> list[str]:
        return self.library.pending_work()

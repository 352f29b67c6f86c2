"""Whether a run's programs get any further: a mark for each, in memory that its processes share.

Progress is a transfer that a NIC has given back to its host, done or failed (`Nic.show`), and the end of a program: what a
program had asked for, and got. Nothing else is, since all else can go on for ever while nobody gets any further: frames that
are sent again to a dead peer, steps of a task that polls, timers, a loop that computes. So a run without progress is either
stuck, or its programs compute, or move one message, for longer than they were thought to: whoever watches says how long
that may be.

Whoever looks disturbs nobody: no signal, no word, and a process that is stopped or spins can be looked at all the same.
"""

from __future__ import annotations

import mmap
from typing import Final

from protocols.core.firmware import Host

_APART: Final = 64  # bytes: two processors do not take one cache line from each other


class Progress:
    """The marks of so many programs, none set. Processes that are forked later have the same ones."""

    def __init__(self, programs: int) -> None:
        self._memory = mmap.mmap(-1, programs * _APART)
        self._marks = memoryview(self._memory)

    def close(self) -> None:
        """In this process; the others keep theirs."""
        self._marks.release()
        self._memory.close()

    def look(self) -> bool:
        """Whether a transfer of any program has ended since the last look."""
        seen = any(self._marks[::_APART])
        self._marks[:] = bytes(len(self._marks))  # a mark that is set just now is lost: there was progress all the same
        return seen

    def watched(self, program: int, host: Host) -> Host:
        """The host library, for the NIC below it: a transfer of it that ends sets this program's mark."""
        return _Watched(host, self._marks[program * _APART : (program + 1) * _APART])


class _Watched:
    """Costs a call and a byte written for each transfer, and nothing for a frame."""

    __slots__ = ("completed", "waiting")

    def __init__(self, host: Host, mark: memoryview) -> None:
        tell = host.completed

        def completed(index: int) -> None:
            mark[0] = 1
            tell(index)

        self.completed = completed
        self.waiting = host.waiting

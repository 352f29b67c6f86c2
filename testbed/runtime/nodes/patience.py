"""Adaptive spinning: how long an idle process polls for a frame before it sleeps.

Sleeping and waking cost processor time on both sides, which a successful spin saves. A spin as long as that time costs at
most twice as much as the better choice (competitive spinning: Karlin, Manasse, McGeoch, Owicki, SODA 1990). After
unsuccessful spins, more and more waits sleep at once, so that a process whose frames arrive slowly, or whose peers cannot
run while it spins, hardly spins at all. After one successful spin, every wait starts with a spin again.

These costs are only the process's own. A spin also keeps other processes from the processor: if a run has more processes
than processors (`for_processes`), none spins.
"""

from __future__ import annotations

import os
import time
from typing import ClassVar, Final

_PROCESSORS: Final = len(os.sched_getaffinity(0))  # available to the run: read before a node process is bound to one

MAX_SLEEPS: Final = 127
"""Maximum number of consecutive waits without a spin; then a spin is tried again."""


class Patience:
    """Spin budget of one process, which calls `budget` at the start of a wait, and `spin_failed` before it sleeps.

    spin: maximum nanoseconds to spin; 0: always sleep at once.
    """

    __slots__ = ("_budget", "_next_sleeps", "_sleeps_left", "_spins")

    SPIN: ClassVar[int] = 50_000
    """Default nanoseconds to spin. Measured in a virtual machine: with sleeping waits, a round trip of EMP took 60 us more
    processor time on each side, 25 us of them for sending to an idle processor."""

    def __init__(self, spin: int) -> None:
        self._budget = spin
        self._spins = False  # whether the last wait started with a spin that has not failed
        self._sleeps_left = 0  # number of further waits without a spin
        self._next_sleeps = 0  # initial value of `_sleeps_left` after the last failed spin

    @classmethod
    def for_processes(cls, processes: int) -> Patience:
        """Make the patience of one of several processes that run at the same time. processes: number of processes."""
        return cls(cls.SPIN if processes <= _PROCESSORS else 0)

    def budget(self) -> int:
        """Start a wait; return the nanoseconds to spin before sleeping."""
        if self._spins:
            self._next_sleeps = 0
        elif self._sleeps_left:
            self._sleeps_left -= 1
            return 0
        self._spins = True
        return self._budget

    def spin_failed(self) -> None:
        """Note that the process sleeps now, after an unsuccessful spin if the wait started with one."""
        if self._spins:
            self._spins = False
            self._sleeps_left = self._next_sleeps = min(2 * self._next_sleeps + 1, MAX_SLEEPS)


class PollPause:
    """Short sleeps of a process in its unsuccessful polls; an event ends a sleep early.

    At first the process does not sleep, for as long as its `Patience` allows a wait to spin. Then it sleeps in each
    unsuccessful poll: for most of a millisecond if the program does nothing but poll; if the program computes between polls,
    only so long that other processes can run.
    """

    __slots__ = ("_cpu_at_wakeup", "_patience", "_spin_until")

    IDLE: ClassVar[int] = 800_000
    """Nanoseconds to sleep if the program only polls. Measured on a loaded machine: short sleeps cost a process its time
    slice, long ones do not."""
    BUSY: ClassVar[int] = 50_000
    """Nanoseconds to sleep if the program computes between polls: as long as sleeping and waking take, see `Patience`."""
    COMPUTES: ClassVar[int] = 200_000
    """Nanoseconds of processor time from one poll to the next, above which a program computes between polls."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._spin_until = 0  # 0: the last poll was successful
        self._cpu_at_wakeup = 0
        """Processor time at the end of the last sleep; 0: no sleep since the last successful poll."""

    def poll_succeeded(self) -> None:
        """Note a successful poll."""
        self._spin_until = 0

    def poll_failed(self, now: int) -> int | None:
        """Note an unsuccessful poll; return the time until which the process shall sleep, or None if it shall not."""
        if not self._spin_until:
            self._spin_until = now + self._patience.budget()
            self._cpu_at_wakeup = 0
        if now < self._spin_until:
            return None
        self._patience.spin_failed()
        computes = self._cpu_at_wakeup and time.thread_time_ns() - self._cpu_at_wakeup > self.COMPUTES
        return now + (self.BUSY if computes else self.IDLE)

    def sleep_ended(self) -> None:
        """Note the end of the sleep, before the program runs again."""
        self._cpu_at_wakeup = time.thread_time_ns()

"""Adaptive spinning: how long an idle process polls for a frame before it sleeps.

Sleeping and waking take the processors of both sides some time, which a successful spin saves: a spin as long as that time
costs at most twice what the better choice would have (competitive spinning: Karlin, Manasse, McGeoch, Owicki, SODA 1990).
After unsuccessful spins more and more waits begin asleep, so that processes whose frames come slowly, or whose peers
cannot run while they spin, hardly spin at all. After one successful spin every wait begins with a spin again.

This counts only a process's own costs. A spin also blocks other processes from the processor: where a run has more
processes than processors (`among`), none spins.
"""

from __future__ import annotations

import os
import time
from typing import ClassVar, Final

_PROCESSORS: Final = len(os.sched_getaffinity(0))  # before a node's process is bound to one

MAX: Final = 127
"""Maximum of consecutive waits that begin asleep; then a spin is tried again."""


class Patience:
    """Spin budget of one process, which calls `budget` when it begins to wait, and `spin_failed` when it falls asleep.

    look: maximum of nanoseconds to spin; 0: always sleep at once.
    """

    __slots__ = ("_budget", "_next", "_sleeps_left", "_spins")

    LOOK: ClassVar[int] = 50_000
    """Nanoseconds. Measured in a virtual machine: a round trip of EMP with sleeping waits took 60 us more processor time on
    each side, 25 of them in sending to an idle processor."""

    def __init__(self, look: int) -> None:
        self._budget = look
        self._spins = False  # the last wait began with a spin, which has not failed
        self._sleeps_left = 0  # waits to come that begin asleep
        self._next = 0  # value of _sleeps_left after the last failed spin

    @classmethod
    def among(cls, processes: int) -> Patience:
        """Make the patience of each of `processes` processes that run at the same time."""
        return cls(cls.LOOK if processes <= _PROCESSORS else 0)

    def budget(self) -> int:
        """Begin a wait; return for how many nanoseconds to spin."""
        if self._spins:
            self._next = 0
        elif self._sleeps_left:
            self._sleeps_left -= 1
            return 0
        self._spins = True
        return self._budget

    def spin_failed(self) -> None:
        """End a spin without success: the wait continues asleep."""
        if self._spins:
            self._spins = False
            self._sleeps_left = self._next = min(2 * self._next + 1, MAX)


class PollPause:
    """Sleep of a process in an unsuccessful poll, until something comes, but at most for a short time.

    First it spins for as long as its `Patience` says, as in a wait. Then it sleeps in each vain poll: most of a millisecond
    where the program does nothing but poll; for a moment, so that others can run, where it computes between its polls.
    """

    __slots__ = ("_look_until", "_patience", "_used")

    IDLE: ClassVar[int] = 800_000
    """Nanoseconds. Measured on a loaded machine: short sleeps cost their process its time slice, long ones do not."""
    BUSY: ClassVar[int] = 50_000
    """Nanoseconds: as long as sleeping and waking take, see `Patience`."""
    COMPUTES: ClassVar[int] = 200_000
    """Nanoseconds of processor time from one poll to the next, above which a program does more than poll."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._look_until = 0  # 0: the last poll was successful
        self._used = 0  # processor time at the end of the last sleep; 0: there was none

    def found(self) -> None:
        """Note a successful poll."""
        self._look_until = 0

    def until(self, now: int) -> int | None:
        """Note a vain poll; return until when to sleep in it; None: not at all."""
        if not self._look_until:
            self._look_until = now + self._patience.budget()
            self._used = 0
        if now < self._look_until:
            return None
        self._patience.spin_failed()
        computes = self._used and time.thread_time_ns() - self._used > self.COMPUTES
        return now + (self.BUSY if computes else self.IDLE)

    def slept(self) -> None:
        """Note the end of the sleep, before the program runs again."""
        self._used = time.thread_time_ns()

"""How long a process that has nothing to do looks for a frame again and again before it sleeps.

Falling asleep and being woken takes the processors of both sides some time, which a look that finds the frame saves: one
that costs as much costs at most twice what the better of the two would have, whatever comes (competitive spinning: Karlin,
Manasse, McGeoch, Owicki, SODA 1990). After looks in vain more and more waits begin asleep, so that processes whose frames
come slowly, or whose peers cannot run while they look, hardly look at all. One frame that comes while it is looked for, and
every wait begins with a look again.

That counts only one's own costs. A look also keeps waiting whoever else could run on the processor: where the processes of
a run are more than the processors (`among`), nobody looks.
"""

from __future__ import annotations

import os
from typing import ClassVar, Final

_PROCESSORS: Final = len(os.sched_getaffinity(0))  # before a node's process is bound to one

MOST: Final = 127
"""Waits in a row that begin asleep, at most; then it is tried again."""


class Patience:
    """Of one process. It asks for its `budget` when there is nothing, and says `in_vain` when it falls asleep.

    look: nanoseconds to look, at most; 0: sleep at once, always.
    """

    __slots__ = ("_look", "_looks", "_next", "_without")

    LOOK: ClassVar[int] = 50_000
    """Nanoseconds. Measured in a virtual machine: a round trip of EMP whose waits were slept through took 60 us more of each
    side's processor, 25 of which went by in sending to an idle one."""

    def __init__(self, look: int) -> None:
        self._look = look
        self._looks = False  # the last wait began with a look, which has not been in vain
        self._without = 0  # so many more waits begin asleep
        self._next = 0  # as many as began so after the last look in vain

    @classmethod
    def among(cls, processes: int) -> Patience:
        """That of each process of so many that run at the same time."""
        return cls(cls.LOOK if processes <= _PROCESSORS else 0)

    def budget(self) -> int:
        """A wait begins: for how many nanoseconds to look."""
        if self._looks:
            self._next = 0
        elif self._without:
            self._without -= 1
            return 0
        self._looks = True
        return self._look

    def in_vain(self) -> None:
        """Nothing has come: the wait goes on asleep."""
        if self._looks:
            self._looks = False
            self._without = self._next = min(2 * self._next + 1, MOST)

"""Clocks, each together with how one waits on it: virtual and dilated. The machine's own is `testbed.kernel.waiting`.

A virtual clock stands still while something happens and jumps to what comes next. A dilated one goes k times slower than
another: what a model says takes 1 us takes k us of the machine's time, beside which the machine's own lateness is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Waiter(Protocol):
    """What a loop waits with. Times are integer nanoseconds of its own clock."""

    def now(self) -> int: ...

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Wait until a watched descriptor is ready or the deadline (None: never) has come; the ready ones."""
        ...

    def watch(self, descriptor: int) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


class VirtualClock:
    """Begins at 0 ns, goes nowhere by itself, and takes no time to get anywhere. No descriptor is ever ready on it."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = 0
        """Now. A loop that runs on the clock sets it, forwards only."""

    def now(self) -> int:
        return self.time

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Jump to the deadline. Nothing to wait for is no time at all."""
        if deadline is not None and deadline > self.time:
            self.time = deadline
        return ()

    def watch(self, descriptor: int) -> None:
        raise ValueError(
            f"descriptor {descriptor} is a thing of the machine's time: a virtual clock cannot wait for it"
        )

    def unwatch(self, descriptor: int) -> None:
        raise ValueError(f"descriptor {descriptor} is not watched: a virtual clock watches none")


class DilatedClock(VirtualClock):
    """A virtual clock that does not run ahead of another waiter's, slowed.

    A model on it is as it is on a virtual clock: what it says shall happen at a time happens at that time, and what follows
    counts from there, however late the machine was; so lateness does not add up. What comes from outside comes at the time
    that `shown` gives for it.

    factor: how many of the other's nanoseconds are one of this one's, 1 or more. origin: the other's time, in its
    nanoseconds, at which this one shows 0; processes that share both share the clock.
    """

    __slots__ = ("_waiter", "factor", "origin")

    def __init__(self, waiter: Waiter, factor: int, origin: int = 0) -> None:
        if factor < 1:
            raise ValueError(f"a clock cannot be slowed {factor} times: the factor is 1 or more")
        super().__init__()
        self._waiter = waiter
        self.factor = factor
        self.origin = origin

    def reached(self) -> int:
        """How far the other clock has come: ours is behind by what has not been dealt with."""
        return self.shown(self._waiter.now())

    def shown(self, moment: int) -> int:
        """Our time at a moment of the other clock."""
        return (moment - self.origin) // self.factor

    def wait(self, deadline: int | None) -> Sequence[int]:
        """As every waiter; the time is not set."""
        return self._waiter.wait(None if deadline is None else self.origin + deadline * self.factor)

    def watch(self, descriptor: int) -> None:
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._waiter.unwatch(descriptor)

"""The loop: callbacks at times and on ready file descriptors, in a defined order.

It knows no clock and waits for nothing itself: it is given something that does (`Waiter`), so that the same loop runs on
a wall clock that waits for file descriptors and, with a waiter that jumps, on a virtual one.

One turn: wait until the earliest timer or a ready descriptor; call what is ready, in the order of registration; then call
every timer that is due, the earliest first, equal times in the order in which they were set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol


class Waiter(Protocol):
    """What a loop waits with. Times are integer nanoseconds of its own clock."""

    def now(self) -> int: ...

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Wait until a watched descriptor is ready or the deadline (None: never) has come; the ready ones."""
        ...

    def watch(self, descriptor: int) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


class Timer:
    """One callback whose time can be set again and again. At most one entry of it in the heap counts."""

    __slots__ = ("_callback", "_loop", "when")

    def __init__(self, loop: Loop, callback: Callable[[int], object]) -> None:
        self._loop = loop
        self._callback = callback
        self.when: int | None = None
        """When it will be called, or None."""

    def set(self, when: int | None) -> None:
        """Be called at that time (or not at all) instead of when it was to be called before."""
        if when == self.when:
            return
        self.when = when
        if when is not None:
            self._loop._push(when, self)

    def _call(self, now: int) -> None:
        self.when = None
        self._callback(now)


class Loop:
    """Runs until `stop`."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._timers: list[tuple[int, int, Timer]] = []
        self._pushed = 0
        self._ready: dict[int, Callable[[int], object]] = {}
        self._running = False

    def now(self) -> int:
        return self._waiter.now()

    def timer(self, callback: Callable[[int], object]) -> Timer:
        """A timer, not set yet. callback(now)."""
        return Timer(self, callback)

    def at(self, when: int, callback: Callable[[int], object]) -> Timer:
        """Call once at that time; callback(now)."""
        timer = Timer(self, callback)
        timer.set(when)
        return timer

    def watch(self, descriptor: int, callback: Callable[[int], object]) -> None:
        """Call whenever the descriptor can be read; callback(now)."""
        self._ready[descriptor] = callback
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        del self._ready[descriptor]
        self._waiter.unwatch(descriptor)

    def run(self) -> None:
        """Turn until `stop` is called."""
        self._running = True
        while self._running:
            self.turn()

    def stop(self) -> None:
        """End `run` after this turn."""
        self._running = False

    def turn(self) -> None:
        """Wait once, then call what is ready and what is due."""
        waiter = self._waiter
        ready = self._ready
        for descriptor in waiter.wait(self._next()):
            callback = ready.get(descriptor)
            if callback is not None:  # another one's callback may just have unwatched it
                callback(waiter.now())
        self._call_due(waiter.now())

    def _push(self, when: int, timer: Timer) -> None:
        self._pushed += 1
        heapq.heappush(self._timers, (when, self._pushed, timer))

    def _next(self) -> int | None:
        """The time of the earliest timer that counts."""
        timers = self._timers
        while timers:
            when, _, timer = timers[0]
            if timer.when == when:
                return when
            heapq.heappop(timers)  # it was set to another time since
        return None

    def _call_due(self, now: int) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            when, _, timer = heapq.heappop(timers)
            if timer.when == when:
                timer._call(now)

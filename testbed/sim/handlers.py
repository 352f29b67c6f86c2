"""A NIC's processor that takes events one after the other, as a firmware's loop does: it tests each kind for one that is
pending, in turn, so that no kind keeps the others waiting for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from testbed.engine.loop import Loop
from testbed.engine.server import Server

KINDS: Final = range(6)
RING, TICK, FETCHED, STORED, SENT, RECEIVED = KINDS
"""What raises events: the bus (a descriptor), the timer, the DMA engine that reads and the one that writes host memory, the
MAC's two sides."""


class Handling:
    """One event. cost: nanoseconds for all that the firmware does about it. begun: when the processor has taken it; -1:
    not yet. then: called when it is done."""

    __slots__ = ("begun", "cost", "since", "then")

    def __init__(self, cost: int, then: Callable[[int], object] | None = None) -> None:
        self.cost = cost
        self.then = then
        self.begun = -1
        self.since = 0


class Handlers:
    """One processor's. server: what counts how long it is busy, and how long events wait."""

    __slots__ = ("_begin", "_busy", "_last", "_loop", "pending", "server")

    def __init__(self, name: str, loop: Loop, begin: Callable[[int], object]) -> None:
        """begin: called whenever an event has been taken."""
        self.server: Final = Server(name)
        self.pending: Final[tuple[deque[Handling], ...]] = tuple(deque() for _ in KINDS)
        """Events that wait, by kind."""
        self._loop = loop
        self._begin = begin
        self._busy = False
        self._last = RECEIVED

    def add(self, now: int, kind: int, event: Handling) -> None:
        """An event has come."""
        event.since = now
        self.pending[kind].append(event)
        if not self._busy:
            self._take(now)

    def _take(self, now: int) -> None:
        """The next one, if there is any; what takes no time is done at once."""
        while (event := self._next()) is not None:
            server = self.server
            server.waited += now - event.since
            event.begun = now
            over = server.reserve(now, event.cost)
            self._busy = True
            self._begin(now)
            if event.cost:
                self._loop.at(over, self._end, event)
                return
            self._finish(now, event)

    def _next(self) -> Handling | None:
        pending = self.pending
        for step in range(1, len(pending) + 1):
            kind = (self._last + step) % len(pending)
            if pending[kind]:
                self._last = kind
                return pending[kind].popleft()
        return None

    def _end(self, event: Handling) -> None:
        now = self._loop.now()
        self._finish(now, event)
        self._take(now)

    def _finish(self, now: int, event: Handling) -> None:
        """What comes of it may be more events: they wait for their turn."""
        if event.then is not None:
            event.then(now)
        self._busy = False

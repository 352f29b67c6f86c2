"""Queue of events of a loop or of a network, ordered by time and then by the order in which they were scheduled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, overload

from testbed.fabric.event_heap import Heap, heappop, heappush

A = TypeVar("A")

NOW: Final = object()
"""Placeholder for the argument of a callback that is called with the time."""

NEVER: Final = (1 << 62) - 1
"""Later than any time; the largest integer that compiled code keeps in a register."""


class ScheduledEvent(Protocol):
    """An event that can be cancelled or moved to another time. Only the entry with its present sequence number is valid."""

    __slots__ = ()

    @property
    def sequence(self) -> int:
        """Sequence number of the valid entry; 0: none."""
        ...

    def call(self, now: int, /) -> None:
        """Handle the event, which is due."""
        ...


class EventQueue:
    """Callbacks and events, by time and then by the order in which they were scheduled."""

    __slots__ = ("entries", "scheduled")

    def __init__(self) -> None:
        self.entries: Final = Heap()
        """Heap of all entries, including invalid ones. For the loop that owns the queue, and its waiter."""
        self.scheduled = 0
        """Number of callbacks and events that have been scheduled so far."""

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def at(self, when: int, callback: Callable[[int], object]) -> None: ...
    @overload
    def at(self, when: int, callback: Callable[[A], object], argument: A) -> None: ...
    def at(self, when: int, callback: Callable[[Any], object], argument: object = NOW) -> None:
        """Call callback(argument) once at time `when`; callback(now) without an argument."""
        self.scheduled = sequence = self.scheduled + 1
        heappush(self.entries, (when, sequence, callback, argument))

    def schedule(self, when: int, event: ScheduledEvent) -> int:
        """Call an event at time `when`, unless its sequence number differs by then from the one that is returned."""
        self.scheduled = sequence = self.scheduled + 1
        heappush(self.entries, (when, sequence, None, event))
        return sequence

    def next_time(self) -> int | None:
        """Return the time of the first valid entry, or None."""
        entries = self.entries
        while entries:
            when, sequence, callback, argument = entries[0]
            if callback is not None or argument.sequence == sequence:
                return when
            heappop(entries)  # its event has been cancelled or moved
        return None

    def call_due(self, now: int) -> None:
        """Call the callbacks and events that are due, at their times."""
        entries = self.entries
        while entries and entries[0][0] <= now:
            when, sequence, callback, argument = heappop(entries)
            if callback is not None:
                callback(when if argument is NOW else argument)
            else:
                event: ScheduledEvent = argument
                if event.sequence == sequence:
                    event.call(when)


class Timer(ScheduledEvent):
    """A callback whose time can be changed. At most one of its entries in the queue is valid."""

    __slots__ = ("_callback", "_events", "sequence", "when")

    def __init__(self, events: EventQueue, callback: Callable[[int], object]) -> None:
        self._events = events
        self._callback = callback
        self.sequence: int = 0
        """Sequence number of the valid entry; 0: none."""
        self.when: int | None = None
        """Time at which the callback will be called, or None."""

    def set(self, when: int | None) -> None:
        """Set the time of the call, in place of the previous one. None: no call."""
        if when == self.when:
            return
        self.when = when
        self.sequence = 0 if when is None else self._events.schedule(when, self)

    def call(self, now: int) -> None:
        """Call the callback, which is due. For the queue's owner only."""
        self.when = None
        self.sequence = 0
        self._callback(now)

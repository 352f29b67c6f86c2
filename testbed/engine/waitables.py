"""Waitables: objects that say whether they are done and call back when they are (`Awaited`).

A task knows no more of what it awaits, so that objects from outside the engine (a protocol's completion) can be awaited
like the engine's own. `__await__` yields the object itself to the task, which runs again after the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from testbed.errors import TestbedError


class Awaited(Protocol):
    """An object that a coroutine yields to its task. Its str() is the end of the sentence "it waits for ..."."""

    @property
    def done(self) -> bool: ...

    def add_callback(self, callback: Callable[[object], object], /) -> object:
        """Call callback(this object) once, when it is done; also if its task has given up waiting."""
        ...


class Until:
    """A time for which one task waits: ``await Until(when)``, in nanoseconds of the loop's clock."""

    __slots__ = ("_when",)

    def __init__(self, when: int) -> None:
        self._when = when

    def __await__(self) -> Generator[int, None, None]:
        yield self._when


class CancelledError(BaseException):
    """Raised in a task where it waits, to end it. No Exception, so that ``except Exception`` does not catch it."""


class DeadlockError(TestbedError):
    """No event is left, and tasks wait."""


class Waitable:
    """A named object for which any number of tasks wait; it calls them back in the order in which they came."""

    __slots__ = ("_callbacks", "done", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False
        self._callbacks: list[Callable[[object], object]] = []

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        """Call back when it is done; at once if it is done already."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def drop_callback(self, callback: Callable[[object], object]) -> None:
        """Remove a callback whose task has given up waiting."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Event(Waitable):
    """An event that has happened or not (`done`). ``await event`` waits until it has."""

    __slots__ = ()

    def set(self) -> None:
        """Set the event: all waiting tasks are woken, in the order in which they came."""
        self.done = True
        self._call_back()

    def clear(self) -> None:
        """Reset the event: tasks that await it from now on wait; those that were woken go on."""
        self.done = False

    def __await__(self) -> Generator[Awaited, None, None]:
        if not self.done:
            yield self

    def __str__(self) -> str:
        return f"event {self.name!r}"

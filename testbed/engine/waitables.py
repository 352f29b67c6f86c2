"""Waitables: objects that have a `done` flag and call back when they are done (`Awaited`).

A task requires nothing else of an object that it awaits. So objects from outside the engine, such as a protocol's
completion, can be awaited like the engine's own. `__await__` yields the object itself to the task, which continues after
the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from testbed.errors import TestbedError


class Awaited(Protocol):
    """An object that a coroutine yields to its task. Its str() is the end of the sentence "it waits for ..."."""

    __slots__ = ()

    @property
    def done(self) -> bool: ...

    def add_callback(self, callback: Callable[[object], object], /) -> object:
        """Call callback(this object) once, when this object is done, even if the task no longer waits for it."""
        ...


class CancelledError(BaseException):
    """Raised in a task where it waits, to end it. A BaseException, so that ``except Exception`` does not catch it."""


class DeadlockError(TestbedError):
    """Tasks wait, and no event is pending."""


class Waitable(Awaited):
    """A named object that any number of tasks can await; it calls them back in the order in which they started to wait."""

    __slots__ = ("_callbacks", "done", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done: bool = False
        self._callbacks: list[Callable[[object], object]] = []

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        """Call callback(this object) when this object is done; at once if it is already done."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def drop_callback(self, callback: Callable[[object], object]) -> None:
        """Remove the callback of a task that no longer waits."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Event(Waitable):
    """An event. ``await event`` waits until it is set (`done`)."""

    __slots__ = ()

    def set(self) -> None:
        """Set the event: all waiting tasks are woken, in the order in which they started to wait."""
        self.done = True
        self._run_callbacks()

    def clear(self) -> None:
        """Reset the event: tasks that await it from now on wait; tasks that were woken continue."""
        self.done = False

    def __await__(self) -> Generator[Awaited, None, None]:
        if not self.done:
            yield self

    def __str__(self) -> str:
        return f"event {self.name!r}"

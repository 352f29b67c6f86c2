"""What a task can wait for: anything that says whether it is done and calls back when it is (`Awaited`).

That is all a task knows of what it awaits, so that what is no part of the engine (a protocol's completion) is awaited as
the engine's own things are. `__await__` yields the object itself to the task, which goes on after the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from testbed.errors import TestbedError


class Awaited(Protocol):
    """What a coroutine yields to its task. Its str() is the end of the sentence "it waits for ..."."""

    @property
    def done(self) -> bool: ...

    def add_callback(self, callback: Callable[[object], object], /) -> object:
        """callback(this object), once, when it is done. One whose task has given up waiting is called all the same."""
        ...


class CancelledError(BaseException):
    """Raised in a task where it waits, when it shall not go on. No Exception: only who means it catches it."""


class DeadlockError(TestbedError):
    """Nothing is left that could happen, and tasks wait."""


class Waitable:
    """A named thing for which any number of tasks wait; it calls them back in the order in which they came."""

    __slots__ = ("_callbacks", "done", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False
        self._callbacks: list[Callable[[object], object]] = []

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        """Called at once if it is done."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def drop_callback(self, callback: Callable[[object], object]) -> None:
        """Who waited has given up."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Event(Waitable):
    """Something that has happened or not. ``await event`` goes on when it has; `done` says whether."""

    __slots__ = ()

    def set(self) -> None:
        """It has happened: all who wait go on, in the order in which they came."""
        self.done = True
        self._call_back()

    def clear(self) -> None:
        """Who comes from now on waits again; who has been told goes on."""
        self.done = False

    def __await__(self) -> Generator[Awaited, None, None]:
        if not self.done:
            yield self

    def __str__(self) -> str:
        return f"event {self.name!r}"

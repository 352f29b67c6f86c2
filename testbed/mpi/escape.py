"""Work that can be abandoned even while it computes or blocks.

A program can catch any exception that is raised to end it. So the work has a stack of its own, and a signal handler, which
runs on top of that stack, abandons it for good: none of the work's code runs again, not even when Python exits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from greenlet import getcurrent, greenlet

T = TypeVar("T")


class Escape(Generic[T]):
    """Work on a stack of its own, which can be left at any point."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._outside = getcurrent()
        self._stack = greenlet(work)

    def run(self) -> T:
        """Run the work and return its result; raises its exception, or the error given to `leave`."""
        return cast(T, self._stack.switch())

    def leave(self, error: BaseException) -> None:
        """Leave the work and raise the error in `run`. Called from within the work; does not return."""
        never_free(self._stack)
        never_free(getcurrent())
        self._outside.throw(error)


def never_free(referrer: object) -> None:
    """Keep a greenlet, or an object that refers to greenlets, until the process ends: freeing a greenlet raises
    GreenletExit in it, and a program that catches this would continue."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(referrer))

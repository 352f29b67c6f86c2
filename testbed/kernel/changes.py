"""Announcements of system calls that change the machine's state. Each one follows its call.

Tests observe the announcements, and kill a process after every third one, or after each one in turn in a long run.
Every system call that changes the machine must be announced; a test compares the announcements with strace's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Observer = Callable[[str], None]
"""Function that is called with each announced change."""

_observers: list[Observer] = []


def announce(change: str) -> None:
    """Notify the observers of a change, such as "mount /run/netns/a.n1"."""
    for observer in _observers:
        observer(change)


def remove_observers() -> None:
    """Remove all observers; a forked process calls this, since the observers are its parent's."""
    _observers.clear()


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Call `observer` for every change announced in the block."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)

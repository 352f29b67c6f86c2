"""Announcements of state-changing system calls, each made after the call.

Progress bars count the announcements, a trace prints them, and the tests kill a process after each one in turn. Every
new system call that changes the machine must be announced; a test compares the announcements with strace's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Observer = Callable[[str], None]

_observers: list[Observer] = []


def announce(change: str) -> None:
    """Notify the observers of a change ("mount /run/netns/a.n1")."""
    for observer in _observers:
        observer(change)


def remove_observers() -> None:
    """Remove all observers: in a forked process they belong to the parent."""
    _observers.clear()


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Call `observer` after every change made in the body."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)

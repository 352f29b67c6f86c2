"""Every state-changing system call is announced here, after it was made.

Progress bars count the announcements, a trace prints them, and the tests kill a process after each one in turn. Whoever
adds a system call that changes the machine announces it; a test compares the announcements with what strace sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Observer = Callable[[str], None]

_observers: list[Observer] = []


def announce(change: str) -> None:
    """Tell the observers that `change` ("mount /run/netns/a.n1") has been made."""
    for observer in _observers:
        observer(change)


def silence() -> None:
    """Let go of all observers: in a forked process they are the parent's."""
    _observers.clear()


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Call `observer` after every change made in the body."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)

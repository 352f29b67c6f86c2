"""Signals that wait until something that must not be left half-way is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C and the requests to end wait until the body is done; the calling thread only."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def default_for_programs() -> None:
    """Undo what Python has set for itself and an executed program would inherit: a closed pipe ends a program."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)

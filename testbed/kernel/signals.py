"""Signal handling around code that must not be interrupted, forks, and programs that are to be executed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Block Ctrl-C and the termination signals in the calling thread until the body is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork() -> int:
    """Fork as `os.fork` does, with signals blocked meanwhile: an exception raised by a handler in a callback of
    `os.register_at_fork` (logging has one) would be lost."""
    with undisturbed():
        return os.fork()


def default_for_programs() -> None:
    """Restore the default actions that Python has changed, which an executed program would inherit: a closed pipe must end
    a program."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)

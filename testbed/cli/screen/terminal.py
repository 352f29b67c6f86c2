"""The terminal while a screen is shown on it: its keys come at once, unseen; afterwards it is as it was, whatever happens.

What ends the block ends by an exception, SIGTERM and SIGHUP too (`cli.main`): the settings are put back on the way out.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from testbed.cli.screen.keys import Keys

_ESCAPE: Final = 0.05  # s after which an escape was the key of that name
_MOST: Final = 1024  # bytes at a time
_SUSPEND: Final = b"\0"  # no key: who is suspended leaves the screen as it is


@dataclass(slots=True)
class Woken:
    """keys: that were pressed. ready: of the descriptors that were given. interrupted: somebody has sent SIGINT. gone:
    nobody sits at the terminal any more."""

    keys: list[str] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    interrupted: bool = False
    gone: bool = False


class Terminal:
    """Its keys, and what else wakes whoever shows something on it: a change of its size, an interrupt."""

    def __init__(self, descriptor: int, signals: int) -> None:
        """signals: what can be read when there was a signal; each byte is its number."""
        self._descriptor = descriptor
        self._signals = signals
        self._keys = Keys()

    def wait(self, seconds: float, others: Collection[int] = ()) -> Woken:
        """Until something has happened, or the time is over."""
        waiting = select.poll()
        for one in (self._descriptor, self._signals, *others):
            waiting.register(one, select.POLLIN)
        ready = {
            one for one, _ in waiting.poll(max(0.0, 1000 * min(seconds, _ESCAPE if self._keys.waits else seconds)))
        }
        woken = Woken(ready=ready & set(others))
        if self._signals in ready:
            woken.interrupted = signal.SIGINT in os.read(self._signals, _MOST)
        if self._descriptor in ready:
            data = os.read(self._descriptor, _MOST)
            woken.gone = not data
            woken.keys = self._keys.feed(data) if data else []
        elif self._keys.waits:
            woken.keys = self._keys.feed(b"")
        return woken


@contextmanager
def taken(descriptor: int) -> Iterator[Terminal]:
    """The terminal behind a descriptor, for the time of the block."""
    before = termios.tcgetattr(descriptor)
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGWINCH)}
    wake = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        settings = termios.tcgetattr(descriptor)
        settings[6][termios.VSUSP] = _SUSPEND
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
        yield Terminal(descriptor, reading)
    finally:
        with contextlib.suppress(termios.error):  # it has been closed: then it is nobody's
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
        signal.set_wakeup_fd(wake)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)

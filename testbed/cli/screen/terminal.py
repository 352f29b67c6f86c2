"""Terminal mode for a full-screen view: keys are read unbuffered and without echo; the settings are restored on exit.

Signals only wake the reader of keys. A handler that raises, like those of `cli.main`, may be called where Python ignores
exceptions, such as in the finalizer of a generator: the view would go on. So signals are events of `Terminal.wait`, and the
view ends by itself.
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

_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_ESCAPE_TIMEOUT: Final = 0.05  # s after which a lone escape is the escape key
_MAX_READ: Final = 1024  # bytes read at once
_SUSPEND: Final = b"\0"  # disables Ctrl-Z, which would not restore the screen


@dataclass(slots=True)
class Wakeup:
    """Events of a wake-up. keys: names of pressed keys. ready: the extra descriptors that are readable. interrupted: whether
    SIGINT arrived. ended_by: SIGTERM or SIGHUP, if one arrived, else 0. gone: whether the terminal was closed."""

    keys: list[str] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    interrupted: bool = False
    ended_by: int = 0
    gone: bool = False


class Terminal:
    """Source of wake-ups: keys, a change of the terminal's size, signals."""

    def __init__(self, descriptor: int, signals: int) -> None:
        """descriptor: of the terminal. signals: descriptor from which signal numbers are read, one byte each."""
        self._descriptor = descriptor
        self._signals = signals
        self._keys = Keys()

    def wait(self, seconds: float, extra_descriptors: Collection[int] = ()) -> Wakeup:
        """Wait for an event, at most `seconds`. extra_descriptors: further descriptors to wait for."""
        poll = select.poll()
        for descriptor in (self._descriptor, self._signals, *extra_descriptors):
            poll.register(descriptor, select.POLLIN)
        timeout = min(seconds, _ESCAPE_TIMEOUT) if self._keys.is_incomplete else seconds
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, 1000 * timeout))}
        wakeup = Wakeup(ready=ready & set(extra_descriptors))
        if self._signals in ready:
            numbers = os.read(self._signals, _MAX_READ)
            wakeup.interrupted = signal.SIGINT in numbers
            wakeup.ended_by = next((number for number in _END_SIGNALS if number in numbers), 0)
        if self._descriptor in ready:
            data = os.read(self._descriptor, _MAX_READ)
            wakeup.gone = not data
            wakeup.keys = self._keys.feed(data) if data else []
        elif self._keys.is_incomplete:
            wakeup.keys = self._keys.feed(b"")
        return wakeup


@contextmanager
def take_over(descriptor: int) -> Iterator[Terminal]:
    """Context manager: switch a terminal to this mode; yields the source of its events."""
    saved_settings = termios.tcgetattr(descriptor)
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handled = [signal.SIGINT, signal.SIGWINCH]
    # SIGHUP is ignored under nohup.
    handled += [number for number in _END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    saved_handlers = {number: signal.signal(number, lambda *_: None) for number in handled}
    saved_wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        settings = termios.tcgetattr(descriptor)
        settings[6][termios.VSUSP] = _SUSPEND
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
        yield Terminal(descriptor, reading)
    finally:
        with contextlib.suppress(termios.error):  # the terminal has been closed
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, saved_settings)
        signal.set_wakeup_fd(saved_wakeup)
        for number, handler in saved_handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)

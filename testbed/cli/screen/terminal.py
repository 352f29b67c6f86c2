"""Terminal mode for a full-screen view: keys arrive at once and without echo; the settings are restored in any case.

Signals only wake who waits for keys: a handler that raises, as `cli.main`'s do, may be called where Python ignores
exceptions, such as the end of an abandoned generator. So nothing ends the block but its own code or an error, and the
settings are restored on the way out.
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

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_ESCAPE: Final = 0.05  # s after which a lone escape is the escape key
_MAX: Final = 1024  # bytes read at once
_SUSPEND: Final = b"\0"  # disables Ctrl-Z, which would leave the screen as it is


@dataclass(slots=True)
class Wakeup:
    """Reasons for waking up. keys: pressed. ready: those of the given descriptors that are readable. interrupted:
    SIGINT arrived. ended_by: SIGTERM or SIGHUP, if one arrived, else 0. gone: the terminal was closed."""

    keys: list[str] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    interrupted: bool = False
    ended_by: int = 0
    gone: bool = False


class Terminal:
    """Source of wake-ups: keys, a change of the terminal's size, an interrupt."""

    def __init__(self, descriptor: int, signals: int) -> None:
        """signals: descriptor from which each byte read is the number of a signal."""
        self._descriptor = descriptor
        self._signals = signals
        self._keys = Keys()

    def wait(self, seconds: float, others: Collection[int] = ()) -> Wakeup:
        """Wait until something happens, or for that time."""
        waiting = select.poll()
        for descriptor in (self._descriptor, self._signals, *others):
            waiting.register(descriptor, select.POLLIN)
        ready = {
            descriptor
            for descriptor, _ in waiting.poll(max(0.0, 1000 * min(seconds, _ESCAPE if self._keys.waits else seconds)))
        }
        woken = Wakeup(ready=ready & set(others))
        if self._signals in ready:
            numbers = os.read(self._signals, _MAX)
            woken.interrupted = signal.SIGINT in numbers
            woken.ended_by = next((number for number in _ENDING if number in numbers), 0)
        if self._descriptor in ready:
            data = os.read(self._descriptor, _MAX)
            woken.gone = not data
            woken.keys = self._keys.feed(data) if data else []
        elif self._keys.waits:
            woken.keys = self._keys.feed(b"")
        return woken


@contextmanager
def take_over(descriptor: int) -> Iterator[Terminal]:
    """Context manager: switch the terminal behind a descriptor to this mode."""
    before = termios.tcgetattr(descriptor)
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    woken_by = [signal.SIGINT, signal.SIGWINCH]
    woken_by += [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # ignored under nohup
    handlers = {number: signal.signal(number, lambda *_: None) for number in woken_by}
    wake = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        settings = termios.tcgetattr(descriptor)
        settings[6][termios.VSUSP] = _SUSPEND
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
        yield Terminal(descriptor, reading)
    finally:
        with contextlib.suppress(termios.error):  # the terminal has been closed
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
        signal.set_wakeup_fd(wake)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)

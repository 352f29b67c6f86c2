"""Calls that wait in the kernel, made beside a loop, which goes on meanwhile.

A packet socket that stops to listen, or is closed, waits until no processor looks at it any more: some ten milliseconds,
in which a relay would carry nothing. Many wait as long as one if they wait together.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from testbed.engine.loop import Loop

_MOST_THREADS: Final = 64


class Aside:
    """Makes calls in threads of their own, and has what comes after them called by the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ended: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # what has ended and the bell are one: whoever is answered has rung
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.watch(self._bell, self._answer)

    def close(self) -> None:
        """Once nothing is being made."""
        self._loop.unwatch(self._bell)
        os.close(self._bell)

    def make(self, calls: Sequence[Callable[[], object]], then: Callable[[], object]) -> None:
        """Make the calls, which raise nothing, at once; when the last one has returned, the loop calls `then`."""
        left = deque(calls)
        running = min(len(left), _MOST_THREADS)
        if not running:
            self._end(then)
            return
        lock = threading.Lock()

        def work() -> None:
            nonlocal running
            while True:
                try:
                    call = left.popleft()
                except IndexError:
                    break
                call()
            with lock:
                running -= 1
                last = not running
            if last:
                self._end(then)

        for _ in range(running):
            threading.Thread(target=work, daemon=True).start()

    def _end(self, then: Callable[[], object]) -> None:
        with self._lock:
            self._ended.append(then)
            os.eventfd_write(self._bell, 1)

    def _answer(self, _now: int) -> None:
        with self._lock:
            os.eventfd_read(self._bell)
            ended, self._ended = self._ended, []
        for then in ended:
            then()

"""Run blocking system calls beside an event loop.

Closing a packet socket, or making it stop listening, waits until no processor uses it any more: about ten milliseconds,
in which a relay would carry nothing. Many such calls in parallel take as long as one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from testbed.engine.loop import Loop

_MAX_THREADS: Final = 64


class BackgroundCalls:
    """Runs calls in threads, and their completion callbacks in the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ended: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # keeps _ended and the eventfd consistent
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.watch(self._bell, self._answer)

    def close(self) -> None:
        """Release the resources, once no call is running."""
        self._loop.unwatch(self._bell)
        os.close(self._bell)

    def make(self, calls: Sequence[Callable[[], object]], then: Callable[[], object]) -> None:
        """Start the calls at once, which must not raise; after the last one has returned, the loop calls `then`."""
        left = deque(calls)
        running = min(len(left), _MAX_THREADS)
        if not running:
            self._end(then)
            return
        lock = threading.Lock()

        def work() -> None:
            nonlocal running
            try:
                while True:
                    try:
                        call = left.popleft()
                    except IndexError:
                        break
                    call()
            finally:  # `then` is called even if a call raises
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

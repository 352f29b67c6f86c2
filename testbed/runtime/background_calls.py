"""Run blocking system calls concurrently with an event loop.

Closing a packet socket, or making it stop receiving, waits until no processor uses it any more: about ten milliseconds,
in which a relay would forward nothing. Many such calls in parallel take as long as one.
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
        self._callbacks: list[Callable[[], object]] = []
        self._callbacks_lock = threading.Lock()  # keeps `_callbacks` and the eventfd consistent
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.watch(self._eventfd, self._run_callbacks)

    def close(self) -> None:
        """Close the eventfd. No call may be running."""
        self._loop.unwatch(self._eventfd)
        os.close(self._eventfd)

    def run(self, calls: Sequence[Callable[[], object]], on_done: Callable[[], object]) -> None:
        """Start the calls, which must not raise, without waiting for them. The loop calls `on_done` after the last one
        has returned."""
        pending = deque(calls)
        running = min(len(pending), _MAX_THREADS)
        if not running:
            self._finish(on_done)
            return
        lock = threading.Lock()

        def run_pending() -> None:
            nonlocal running
            try:
                while True:
                    try:
                        call = pending.popleft()
                    except IndexError:
                        break
                    call()
            finally:  # `on_done` is called even if a call raises
                with lock:
                    running -= 1
                    is_last = not running
                if is_last:
                    self._finish(on_done)

        for _ in range(running):
            threading.Thread(target=run_pending, daemon=True).start()

    def _finish(self, on_done: Callable[[], object]) -> None:
        with self._callbacks_lock:
            self._callbacks.append(on_done)
            os.eventfd_write(self._eventfd, 1)

    def _run_callbacks(self, _now: int) -> None:
        with self._callbacks_lock:
            os.eventfd_read(self._eventfd)
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

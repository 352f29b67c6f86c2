"""Run blocking system calls concurrently with an event loop.

Closing a packet socket, or making it stop receiving, waits until no processor uses it any more: about ten milliseconds,
in which a relay would forward nothing. Many such calls in parallel take as long as one, since they wait for the same grace
period.
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
        """Start the calls, without waiting for them. The loop calls `on_done` after the last one has returned. If a call
        raises, its thread ends; `on_done` is called all the same."""
        pending = deque(calls)
        running = 1  # threads that are not done, this one included
        lock = threading.Lock()

        def leave() -> None:
            nonlocal running
            with lock:
                running -= 1
                is_last = not running
            if is_last:
                self._finish(on_done)

        def run_pending() -> None:
            try:
                while True:
                    try:
                        call = pending.popleft()
                    except IndexError:
                        break
                    call()
            finally:
                leave()

        for _ in range(min(len(pending), _MAX_THREADS)):
            with lock:
                running += 1
            try:
                threading.Thread(target=run_pending, daemon=True).start()
            except RuntimeError:  # the system has no room for another thread: this one makes the remaining calls
                run_pending()
                break
        leave()

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

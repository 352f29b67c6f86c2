"""Run blocking system calls in threads, beside an event loop.

Closing a packet socket, or making it stop receiving, blocks until no processor uses the socket any more: for about ten
milliseconds, in which a relay would forward nothing. Many such calls in parallel take as long as one, since they wait for
the same RCU grace period.
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
        self._callbacks_lock = threading.Lock()  # for `_callbacks` and the eventfd, which change together
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.watch(self._eventfd, self._run_callbacks)

    def close(self) -> None:
        """Close the eventfd. No call may be running."""
        self._loop.unwatch(self._eventfd)
        os.close(self._eventfd)

    def run(self, calls: Sequence[Callable[[], object]], on_done: Callable[[], object]) -> None:
        """Start the calls, without waiting for them. The loop calls `on_done` after the last one has ended.

        After a call that raises, the remaining calls are still made. Then its thread raises the first error, or this
        method does, if the system allows no further thread and the calls are made here.
        """
        pending = deque(calls)
        running = 1  # number of threads that have not finished, including the present one
        lock = threading.Lock()

        def finish_thread() -> None:
            nonlocal running
            with lock:
                running -= 1
                is_last = not running
            if is_last:
                self._schedule(on_done)

        def run_pending() -> None:
            first_error: Exception | None = None
            try:
                while True:
                    try:
                        call = pending.popleft()
                    except IndexError:
                        break
                    try:
                        call()
                    except Exception as error:  # noqa: BLE001  raised after the remaining calls
                        first_error = first_error or error
                if first_error is not None:
                    raise first_error
            finally:
                finish_thread()

        try:
            for _ in range(min(len(pending), _MAX_THREADS)):
                with lock:
                    running += 1
                try:
                    threading.Thread(target=run_pending, daemon=True).start()
                except RuntimeError:  # the system allows no further thread: the present one makes the remaining calls
                    run_pending()
                    break
        finally:
            finish_thread()

    def _schedule(self, callback: Callable[[], object]) -> None:
        """Let the loop call `callback`; called in any thread."""
        with self._callbacks_lock:
            self._callbacks.append(callback)
            os.eventfd_write(self._eventfd, 1)

    def _run_callbacks(self, _now: int) -> None:
        with self._callbacks_lock:
            os.eventfd_read(self._eventfd)
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

"""Measure the wake-up latency of a process that only sleeps, for a millisecond at a time, and reads the clock.

On an idle machine, this latency is the timer floor. While probes run, it includes the time for which a ready process waits
for a processor.
"""

from __future__ import annotations

import os
import pickle
import signal
from typing import Final

from testbed.kernel import syscalls
from testbed.kernel.children import fork
from testbed.kernel.waiter import Waiter

_PERIOD: Final = 1_000_000  # ns
_MAX_WAKE_UPS: Final = 200_000  # recorded; the process then ends


class Sleeper:
    """A child process that sleeps and records its wake-ups, from construction until `stop`."""

    def __init__(self) -> None:
        stop, self._stop = os.pipe()
        self._answer, answer = os.pipe()
        self._child = fork()
        if self._child == 0:
            os.close(self._stop)
            _sleep(stop, answer)
        os.close(stop)
        os.close(answer)

    def stop(self) -> list[tuple[int, int]]:
        """End the process and return each wake-up: its due time, monotonic nanoseconds, and its latency, nanoseconds."""
        os.close(self._stop)
        with open(self._answer, "rb") as answers:
            data = answers.read()
        os.waitpid(self._child, 0)
        wake_ups: list[tuple[int, int]] = pickle.loads(data) if data else []  # written by our own child
        return wake_ups


def _sleep(stop: int, answer: int) -> None:
    """Run the child process; does not return."""
    status = 1
    try:
        syscalls.end_with_parent(signal.SIGKILL)
        waiter = Waiter(spin=0)
        waiter.watch(stop)
        wake_ups: list[tuple[int, int]] = []
        due = waiter.now() + _PERIOD
        while not waiter.wait(due) and len(wake_ups) < _MAX_WAKE_UPS:
            now = waiter.now()
            wake_ups.append((due, now - due))
            due = max(due + _PERIOD, now + _PERIOD // 2)  # sleep even after a late wake-up
        with open(answer, "wb") as answers:
            answers.write(pickle.dumps(wake_ups))
        status = 0
    finally:
        os._exit(status)

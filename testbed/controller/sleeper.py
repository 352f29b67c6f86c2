"""How late a sleeping process wakes: one that does nothing but sleep, a millisecond at a time, and look at the clock.

While nothing else of ours runs that is the machine's timer floor; while probes run, the time for which a process that is
ready waits for a processor.
"""

from __future__ import annotations

import os
import pickle
import signal
from typing import Final

from testbed.kernel import syscalls
from testbed.kernel.waiting import Waiter

_PERIOD: Final = 1_000_000
_MOST: Final = 200_000  # wake-ups that are remembered


class Sleeper:
    """It sleeps from when it is made until it is asked."""

    def __init__(self) -> None:
        stop, self._stop = os.pipe()
        self._answer, answer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._stop)
            _sleep(stop, answer)
        os.close(stop)
        os.close(answer)

    def wake_ups(self) -> list[tuple[int, int]]:
        """End it: when it was to wake on each occasion, on the monotonic clock, and by how much it was late."""
        os.close(self._stop)
        with open(self._answer, "rb") as answers:
            said = answers.read()
        os.waitpid(self._child, 0)
        found: list[tuple[int, int]] = pickle.loads(said) if said else []  # written by our own child
        return found


def _sleep(stop: int, answer: int) -> None:
    """The child's side; does not return."""
    status = 1
    try:
        syscalls.end_with_parent(signal.SIGKILL)
        waiter = Waiter(spin=0)
        waiter.watch(stop)
        found: list[tuple[int, int]] = []
        due = waiter.now() + _PERIOD
        while not waiter.wait(due) and len(found) < _MOST:
            now = waiter.now()
            found.append((due, now - due))
            due = max(due + _PERIOD, now + _PERIOD // 2)
        with open(answer, "wb") as answers:
            answers.write(pickle.dumps(found))
        status = 0
    finally:
        os._exit(status)

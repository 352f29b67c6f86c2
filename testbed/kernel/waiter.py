"""Waiting for file descriptors and for a deadline in nanoseconds, by epoll or poll with a timerfd.

The timeouts of epoll and poll are in milliseconds. The timerfd expires slightly early, and the waiter spins for the rest,
since a wake-up takes a few microseconds on some machines and tens of microseconds on others. The time to spin is adapted to
the lateness of wake-ups. Shortly before the deadline, descriptors are not polled: a batch of frames would take longer than
the remaining time.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import Final

from testbed.kernel.syscalls import checked

SPIN: Final = 50_000
"""Maximum time, in nanoseconds, that the waiter spins before a deadline instead of sleeping."""

_INITIAL_SPIN: Final = 20_000  # ns; before the first measurement
# ns. With these steps, two of three wake-ups are in time. A higher share would take more processor time than it is worth.
_SPIN_INCREASE: Final = 200
_SPIN_DECREASE: Final = 100
_FRAME_TIME: Final = 15_000  # ns; about the time that the relay takes to forward a frame
_MIN_SLEEP: Final = 5_000  # ns; arming the timer takes about as long
_TFD_TIMER_ABSTIME: Final = 1
_EXPIRY: Final = struct.Struct("qqqq")  # struct itimerspec: interval and value, each seconds and nanoseconds

_libc = ctypes.CDLL(None, use_errno=True)
_libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Waiter:
    """Waiter on the machine's monotonic clock. spin: maximum nanoseconds to spin before a deadline; 0: never.

    is_light: whether to use poll, for few descriptors and a program that seldom waits. With epoll, the kernel maintains
    a list of ready descriptors, at the cost of processes that send to watched sockets: a round trip of bare sockets takes
    1.5 us longer.
    """

    def __init__(self, spin: int = SPIN, *, is_light: bool = False) -> None:
        self.spun = 0
        """Nanoseconds spent spinning until now."""
        self._max_spin = spin
        self._spin = min(spin, _INITIAL_SPIN)
        self._poller = select.poll() if is_light else select.epoll()
        self._timer = checked(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        self._setting = ctypes.create_string_buffer(_EXPIRY.size)
        self._armed: int | None = None
        self._has_expired = False
        self._poller.register(self._timer, select.POLLIN)

    def close(self) -> None:
        if isinstance(self._poller, select.epoll):
            self._poller.close()
        os.close(self._timer)

    def now(self) -> int:
        return time.monotonic_ns()

    def watch(self, descriptor: int) -> None:
        self._poller.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Wait until watched descriptors are readable; return them, or an empty sequence after the deadline. deadline:
        time of the monotonic clock, ns; None: never."""
        poll = self._poller.poll
        if deadline is None:
            if self._armed is not None:
                self._arm(0)
                self._armed = None
            return self._without_timer(poll())
        now = time.monotonic_ns
        wake = deadline - self._spin
        if wake - now() > _MIN_SLEEP:
            if wake != self._armed:
                self._arm(wake)
                self._armed = wake
            ready = self._without_timer(poll())
            if not self._has_expired:
                return ready
            self._adapt_spin(now() - wake)
        elif ready := self._without_timer(poll(0)):
            return ready
        started = time_now = now()
        while time_now < deadline:
            if deadline - time_now > _FRAME_TIME and (ready := self._without_timer(poll(0))):
                self.spun += time_now - started
                return ready
            time_now = now()
        self.spun += time_now - started
        return ()

    def _adapt_spin(self, late: int) -> None:
        """Lengthen the spin if a wake-up came too late for it, else shorten it. late: nanoseconds after the timer's
        expiry."""
        self._spin = (
            min(self._spin + _SPIN_INCREASE, self._max_spin)
            if late > self._spin
            else max(self._spin - _SPIN_DECREASE, 0)
        )

    def _without_timer(self, events: Sequence[tuple[int, int]]) -> list[int]:
        ready = [descriptor for descriptor, _ in events]
        self._has_expired = self._timer in ready
        if self._has_expired:
            ready.remove(self._timer)
            os.read(self._timer, 8)
            self._armed = None
        return ready

    def _arm(self, deadline: int) -> None:
        """Set the timer's expiry; 0: never."""
        _set(self._timer, self._setting, deadline)


class Timer:
    """A timerfd: a descriptor that becomes readable at a time of the monotonic clock."""

    def __init__(self) -> None:
        self._timer = checked(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        return self._timer

    def set(self, deadline: int) -> None:
        """Set the time in nanoseconds; 0: never."""
        _set(self._timer, ctypes.create_string_buffer(_EXPIRY.size), deadline)


def _set(timer: int, setting: ctypes.Array[ctypes.c_char], deadline: int) -> None:
    seconds, nanoseconds = divmod(deadline, 1_000_000_000)
    _EXPIRY.pack_into(setting, 0, 0, 0, seconds, nanoseconds)
    checked(_libc.timerfd_settime(timer, _TFD_TIMER_ABSTIME, setting, None))

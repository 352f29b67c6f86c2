"""Requests that are done and were not tested yet, and programs that wait for one, perhaps for a limited time.

Time is the endpoint's ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from protocols.core.completion import Completion
from protocols.openmx.mx_requests import Request, Result


class FinishedRequests:
    """Finished requests of one endpoint, in the order in which they were done. set_alarm: lets ticks come."""

    def __init__(self, set_alarm: Callable[[], object]) -> None:
        self._set_alarm = set_alarm
        self._finished: deque[Request] = deque()
        self._time_outs: list[tuple[int, Completion[bool]]] = []  # by tick
        self._waiters: list[Completion[bool]] = []  # for any request that is done

    @property
    def awaits_tick(self) -> bool:
        return bool(self._time_outs)

    def first(self) -> Request | None:
        """Return the oldest one."""
        return self._finished[0] if self._finished else None

    def find(self, match_info: int, mask: int) -> Request | None:
        """Return the oldest one whose match information matches."""
        return next((one for one in self._finished if one.result().match_info & mask == match_info), None)

    def take(self, request: Request) -> Result:
        """Remove a request that is done; return its result."""
        if request in self._finished:
            self._finished.remove(request)
        return request.result()

    def keep(self, request: Completion[Result]) -> None:
        """Add a request that is done, and wake those who wait for one."""
        assert isinstance(request, Request)
        self._finished.append(request)
        self.wake(True)

    def next(self, tick: int) -> Completion[bool]:
        """Return what is done with True when a request is, and with False at that tick (0: never) or by `wake`."""
        done = self._time_out(tick)
        self._waiters.append(done)
        return done

    def one(self, request: Request, tick: int) -> Completion[bool]:
        """Return what is done with True when this request is, and with False at that tick."""
        done = self._time_out(tick)
        request.add_callback(partial(_complete, done))
        return done

    def wake(self, finished: bool) -> None:
        """End all waits of `next`."""
        waiters, self._waiters = self._waiters, []
        for done in waiters:
            if not done.done:
                done.complete(finished)

    def on_tick(self, ticks: int) -> None:
        """End waits whose time is over."""
        due = [done for tick, done in self._time_outs if tick <= ticks]
        self._time_outs = [(tick, done) for tick, done in self._time_outs if tick > ticks and not done.done]
        for done in due:
            if not done.done:
                done.complete(False)

    def _time_out(self, tick: int) -> Completion[bool]:
        done: Completion[bool] = Completion("a request that is done")
        if tick:
            self._time_outs.append((tick, done))
            self._set_alarm()
        return done


def _complete(done: Completion[bool], _request: Completion[Result]) -> None:
    if not done.done:
        done.complete(True)

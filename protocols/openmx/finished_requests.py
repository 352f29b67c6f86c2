"""Finished requests of an endpoint whose results were not taken yet, and the programs that wait for requests to finish.

A wait's deadline is the number of a tick, as counted by the endpoint; 0: none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from protocols.core.completion import Completion
from protocols.openmx.mx_requests import Request, Result


class FinishedRequests:
    """Finished requests of one endpoint, in the order of completion. set_alarm: called to request the next tick."""

    def __init__(self, set_alarm: Callable[[], object]) -> None:
        self._set_alarm = set_alarm
        self._finished: deque[Request] = deque()
        self._time_outs: list[tuple[int, Completion[bool]]] = []  # deadline and wait, unsorted
        self._waiters: list[Completion[bool]] = []  # the waits of `wait_any`

    @property
    def awaits_tick(self) -> bool:
        return bool(self._time_outs)

    def oldest(self) -> Request | None:
        """Return the oldest finished request."""
        return self._finished[0] if self._finished else None

    def find(self, match_info: int, mask: int) -> Request | None:
        """Return the oldest finished request whose match information matches."""
        return next((request for request in self._finished if request.result().match_info & mask == match_info), None)

    def take(self, request: Request) -> Result:
        """Remove a finished request; return its result."""
        if request in self._finished:
            self._finished.remove(request)
        return request.result()

    def add(self, request: Completion[Result]) -> None:
        """Add a finished request, and wake the waiters."""
        assert isinstance(request, Request)
        self._finished.append(request)
        self.wake(True)

    def wait_any(self, tick: int) -> Completion[bool]:
        """Wait until the next request finishes; one that has finished before does not end the wait. The result is True when
        the request finishes, False at the deadline `tick` (0: none) or after `wake(False)`."""
        done = self._start_wait(tick)
        self._waiters.append(done)
        return done

    def wait_for(self, request: Request, tick: int) -> Completion[bool]:
        """Wait for a request. The result is True when the request is finished, False at the deadline `tick` (0: none)."""
        done = self._start_wait(tick)
        request.add_callback(partial(_complete, done))
        return done

    def wake(self, finished: bool) -> None:
        """Complete all waits of `wait_any` with `finished`."""
        waiters, self._waiters = self._waiters, []
        for done in waiters:
            if not done.done:
                done.complete(finished)

    def on_tick(self, ticks: int) -> None:
        """End the waits whose deadline has passed. ticks: number of the current tick."""
        due = [done for tick, done in self._time_outs if tick <= ticks]
        self._time_outs = [(tick, done) for tick, done in self._time_outs if tick > ticks and not done.done]
        for done in due:
            if not done.done:
                done.complete(False)

    def _start_wait(self, tick: int) -> Completion[bool]:
        done: Completion[bool] = Completion("a finished request")
        if tick:
            self._time_outs.append((tick, done))
            self._set_alarm()
        return done


def _complete(done: Completion[bool], _request: Completion[Result]) -> None:
    if not done.done:
        done.complete(True)

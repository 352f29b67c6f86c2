"""Tasks: coroutines that a loop carries on. Written as ``async def``, run without asyncio.

A coroutine says to its task what it waits for by what it yields: a time (an int, nanoseconds: `Loop.sleep`), or anything
`Awaited`. When that is done the task is woken: it goes on when what runs now has returned, in the order of waking. So a
callback never runs a task inside itself, and no chain of tasks that wake each other grows the stack.

It is interrupted (cancelled, or out of time) only where it waits. What has been done before the interruption came is
delivered first: an item handed to a task is never lost.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from heapq import heappush
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from testbed.engine.awaiting import Awaited, CancelledError, Event, Waitable

if TYPE_CHECKING:
    from testbed.engine.loop import Loop

T = TypeVar("T")

Work = Coroutine[Awaited | int, None, T]
"""What ``async def`` makes, as far as a loop can carry it on."""

_BEGINNING: Final = Event("its turn to begin")


class Task(Waitable, Generic[T]):
    """One coroutine on its way. ``await task`` gives its result or raises what ended it.

    An exception that nobody awaits when it is raised ends the loop's run, with the task's name in a note.
    """

    __slots__ = (
        "_cancel", "_coroutine", "_error", "_loop", "_pending", "_result", "_send", "_thrown", "_waiting", "_woken",
        "number", "sequence", "service",
    )  # fmt: skip

    def __init__(self, loop: Loop, coroutine: Work[T], name: str, number: int, service: bool) -> None:
        super().__init__(name)
        self.number = number
        self.service = service
        """Whether it may wait for ever."""
        self.sequence = 0
        """Which entry of the loop's heap wakes it; 0: none."""
        self._loop = loop
        self._coroutine = coroutine
        self._send = coroutine.send
        self._woken = loop.woken
        self._waiting: Awaited | int | None = _BEGINNING  # None: it runs, or has been woken
        self._thrown: CancelledError | None = None  # what it is woken with
        self._pending: list[CancelledError] = []  # what comes where it waits next
        self._cancel: CancelledError | None = None
        self._result: T
        self._error: BaseException | None = None
        self._woken.append(self)

    @property
    def cancelled(self) -> bool:
        """Whether it has ended because it was asked to."""
        return self._error is not None and self._error is self._cancel

    @property
    def waits_for(self) -> str:
        """A phrase for it, empty where it waits for nothing."""
        waiting = self._waiting
        return "" if waiting is None else f"{waiting} ns" if isinstance(waiting, int) else str(waiting)

    def result(self) -> T:
        """What its coroutine has returned; raises what has ended it, CancelledError too."""
        if not self.done:
            raise RuntimeError(f"task {self.name!r} has not ended: it has no result")
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> None:
        """Raise CancelledError in it, where it waits or will wait next. One that has not begun never will."""
        if self._cancel is None:
            self._cancel = CancelledError(f"task {self.name!r} was cancelled")
        self.interrupt(self._cancel)

    def interrupt(self, error: CancelledError) -> None:
        """Raise this error in it, where it waits or will wait next."""
        if self._waiting is not None:
            self._throw(error)
        elif not self.done and error is not self._thrown and error not in self._pending:
            self._pending.append(error)

    def spare(self, error: CancelledError) -> None:
        """It need not be interrupted by this error any more."""
        if error in self._pending:
            self._pending.remove(error)

    def close(self) -> None:
        """End it where it waits, without the loop: its ``finally`` blocks run, and they cannot wait."""
        self._coroutine.close()
        self._end(CancelledError(f"task {self.name!r} was closed"))

    def wake(self, awaited: object) -> None:
        """What it waits for is done. Nothing happens if it waits for something else by now."""
        if awaited is self._waiting:
            self._waiting = None
            self._woken.append(self)

    def call(self, _now: int) -> None:
        """Carry the coroutine on until it waits again. For the loop only."""
        loop = self._loop
        loop.current = self
        self._waiting = None
        try:
            if self._thrown is None:
                awaited = self._send(None)
            else:
                thrown, self._thrown = self._thrown, None
                awaited = self._coroutine.throw(thrown)
        except StopIteration as stop:
            self._result = stop.value
            self._end(None)
            return
        except BaseException as error:
            if not self._heard(error):
                error.add_note(f"in task {self.name!r} at {loop.now()} ns")
                raise
            return
        if type(awaited) is int:
            self._waiting = awaited
            self.sequence = sequence = loop.next_sequence()
            heappush(loop.heap, (awaited, sequence, None, self))
        elif awaited.done:  # type: ignore[union-attr]  # isinstance, which mypy could follow, takes longer
            self._waiting = awaited
            if not self._pending:
                loop.give_way(self, awaited)
        else:
            self._waiting = awaited
            awaited.add_callback(self.wake)  # type: ignore[union-attr]
        if self._pending and self._waiting is not None:
            self._throw(self._pending.pop(0))

    def _throw(self, error: CancelledError) -> None:
        waiting = self._waiting
        if isinstance(waiting, Waitable):
            waiting.drop_callback(self.wake)
        self.sequence = 0
        self._waiting = None
        self._thrown = error
        if waiting is not _BEGINNING:  # else it has its place among those that go on
            self._woken.append(self)

    def _heard(self, error: BaseException) -> bool:
        """End with that error; whether it was asked for, or somebody awaits it."""
        awaited = bool(self._callbacks) and isinstance(error, (Exception, CancelledError))
        self._end(error)
        return awaited or error is self._cancel

    def _end(self, error: BaseException | None) -> None:
        self.done = True
        self._error = error
        self._waiting = None
        self.sequence = 0
        self._pending.clear()
        self._loop.forget(self)
        self._call_back()

    def __await__(self) -> Generator[Awaited, None, T]:
        if not self.done:
            yield self
        return self.result()

    def __str__(self) -> str:
        return f"the end of task {self.name!r}"

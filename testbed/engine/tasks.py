"""Tasks: coroutines that a loop runs. Written as ``async def``, run without asyncio.

A coroutine yields to its task what it waits for: a time (an int, nanoseconds: `Loop.sleep`), or anything `Awaited`. When
that is done the task is woken: it runs after the present callback or step has returned, in the order of waking. So a
callback never runs a task inside itself, and no chain of tasks that wake each other grows the stack.

A task is interrupted (cancelled, or by a timeout) only where it waits. A result that came before the interruption is
delivered first: an item handed to a task is never lost.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from heapq import heappush
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from testbed.engine.tracebacks import Stacked, chain_of, program_line, suspended
from testbed.engine.waitables import Awaited, CancelledError, Event, Waitable

if TYPE_CHECKING:
    from testbed.engine.loop import Loop

T = TypeVar("T")

Work = Coroutine[Awaited | int, None, T]
"""A coroutine that a loop can run."""

_JUST: Final = 1_000_000  # ns after a poll, within which a task that runs is reported as polling

_BEGINNING: Final = Event("its turn to begin")


class Task(Waitable, Generic[T]):
    """A coroutine that a loop runs. ``await task`` returns its result or raises its error.

    An exception that no task awaits when it is raised ends the loop's run, with the task's name in a note.
    """

    __slots__ = (
        "_cancel", "_coroutine", "_error", "_loop", "_pending", "_poll", "_result", "_send", "_thrown", "_waiting", "_woken",
        "number", "poll_time", "polled", "sequence", "service",
    )  # fmt: skip

    def __init__(self, loop: Loop, coroutine: Work[T], name: str, number: int, service: bool) -> None:
        super().__init__(name)
        self.number = number
        self.service = service
        """Whether it may wait for ever."""
        self.sequence = 0
        """Sequence number of the entry in the loop's heap that wakes it; 0: none."""
        self.polled: int | None = None
        """When it polled last."""
        self.poll_time = 0
        """Nanoseconds that a poll of it takes on a virtual clock; 0: as long as the loop's."""
        self._loop = loop
        self._coroutine = coroutine
        self._send = coroutine.send
        self._woken = loop.woken
        self._waiting: Awaited | int | None = _BEGINNING  # None: it runs, or has been woken
        self._poll: Awaited | int | None = None  # what it has awaited where it polled last
        self._thrown: CancelledError | None = None  # raised in it when it runs again
        self._pending: list[CancelledError] = []  # interruptions for when it waits next
        self._cancel: CancelledError | None = None
        self._result: T
        self._error: BaseException | None = None
        self._woken.append(self)

    @property
    def cancelled(self) -> bool:
        """Whether it has ended because it was cancelled."""
        return self._error is not None and self._error is self._cancel

    @property
    def waits_for(self) -> str:
        """A phrase for what it waits for, empty where it does not wait."""
        waiting = self._waiting
        return "" if waiting is None else f"{waiting} ns" if isinstance(waiting, int) else str(waiting)

    @property
    def doing(self) -> str:
        """Description of its state, the end of a sentence that begins with its name, with the line of its program; if it
        waits for another task, also that one's."""
        phrases: list[str] = []
        task: Task[Any] = self
        seen = {self.number}
        while True:
            line = program_line(task.frames())
            phrases.append(task._verb + (f", at {line}" if line else ""))
            if not isinstance(task._waiting, Task) or task._waiting.number in seen:
                return "; that one ".join(phrases)
            task = task._waiting
            seen.add(task.number)

    @property
    def _verb(self) -> str:
        waiting = self._waiting
        if waiting is None:
            just_polled = self.polled is not None and self._loop.now() - self.polled < _JUST
            return "polls" if just_polled else "has its turn"
        if isinstance(waiting, int):
            return f"sleeps, for {max(0, waiting - self._loop.now()):,} ns more"
        return "polls" if waiting.done else f"waits for {waiting}"

    def frames(self) -> list[FrameType]:
        """Return the stack of where it waits, or polled last, the innermost frame last; of a running coroutine, none of its
        frames."""
        waiting = self._waiting if self._waiting is not None else self._poll
        frames = suspended(self._coroutine)
        if isinstance(waiting, Task):  # whose frames are another program's
            return frames
        return frames + (waiting.frames() if isinstance(waiting, Stacked) else [])

    def result(self) -> T:
        """Return the coroutine's result, or raise the error that ended it, CancelledError too."""
        if not self.done:
            raise RuntimeError(f"task {self.name!r} has not ended: it has no result")
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> None:
        """Raise CancelledError in it, where it waits or will wait next. One that has not begun never begins."""
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
        """Withdraw an interruption that has not been raised yet."""
        if error in self._pending:
            self._pending.remove(error)

    def close(self) -> list[object]:
        """End it where it waits, without the loop: its ``finally`` blocks run, and they cannot wait. Return its coroutines
        that wait all the same: keep a reference to them, since freeing would resume them."""
        chain = chain_of(self._coroutine)
        try:
            self._coroutine.close()
        except Exception:
            if not any(_is_alive(coroutine) for coroutine in chain):
                raise
        finally:
            self._end(CancelledError(f"task {self.name!r} was closed"))
        return [coroutine for coroutine in chain if _is_alive(coroutine)]

    def wake(self, awaited: object) -> None:
        """Wake it if it still waits for this, which is done."""
        if awaited is self._waiting:
            self._waiting = None
            self._woken.append(self)

    def call(self, _now: int) -> None:
        """Run the coroutine until it waits again. For the loop only."""
        loop = self._loop
        loop.current = self
        loop.in_task = True
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
        finally:
            loop.in_task = False
        if type(awaited) is int:
            self._waiting = awaited
            self.sequence = sequence = loop.next_sequence()
            heappush(loop.heap, (awaited, sequence, None, self))
        elif awaited.done:  # type: ignore[union-attr]  # isinstance, which mypy could follow, takes longer
            self._waiting = awaited
            self.polled = loop.now()
            self._poll = awaited
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
        if waiting is not _BEGINNING:  # else it is among the woken tasks already
            self._woken.append(self)

    def _heard(self, error: BaseException) -> bool:
        """End with that error; return whether it was the cancellation, or another task awaits this one."""
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


def _is_alive(coroutine: object) -> bool:
    return any(getattr(coroutine, name, None) is not None for name in ("cr_frame", "gi_frame", "ag_frame"))

"""Tasks: ``async def`` coroutines that a loop runs, without asyncio.

A coroutine yields to its task the object that it waits for: a time (an int, nanoseconds: `Loop.sleep`), or an `Awaited`
object. When the object is done, the task is woken: it runs after the current callback or step has returned, in the order of
waking. So a callback never runs a task inside itself, and tasks that wake each other do not grow the stack.

A task is interrupted, by `cancel` or by a timeout, only where it waits. A result that came before the interruption is
delivered first, so that an item passed to a task is never lost.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from testbed.engine.coroutines import await_chain, suspended_frames
from testbed.engine.tracebacks import HasStack, program_line
from testbed.engine.waitables import Awaited, CancelledError, Event, Waitable
from testbed.fabric.event_queue import ScheduledEvent

if TYPE_CHECKING:
    from testbed.engine.loop import Loop

T = TypeVar("T")

Work = Coroutine[Awaited | int, None, T]
"""A coroutine that a loop can run."""

_POLL_DISPLAY_TIME: Final = 1_000_000  # ns after its last poll during which a running task is reported as polling

_START: Final = Event("its turn to begin")


class Task(Waitable, ScheduledEvent, Generic[T]):
    """A coroutine that a loop runs. ``await task`` returns its result or raises its error.

    An exception of a task that no other task awaits ends the loop's run, with the task's name in a note.
    """

    __slots__ = (
        "_cancellation",
        "_coroutine",
        "_error",
        "_injected",
        "_loop",
        "_pending",
        "_polled",
        "_result",
        "_send",
        "_waiting",
        "_woken",
        "last_poll",
        "number",
        "poll_time",
        "sequence",
        "service",
    )  # fmt: skip

    def __init__(self, loop: Loop, coroutine: Work[T], name: str, number: int, service: bool) -> None:
        super().__init__(name)
        self.number = number
        self.service = service
        """Whether the task may wait forever."""
        self.sequence: int = 0
        """Sequence number of the event that wakes the task; 0: none."""
        self.last_poll: int | None = None
        """Time of the last poll, in nanoseconds; None: the task has not polled."""
        self.poll_time = 0
        """Nanoseconds that a poll takes on a virtual clock; 0: the loop's `poll_time`."""
        self._loop = loop
        self._coroutine = coroutine
        try:
            self._send = coroutine.send
        except AttributeError:
            kind = type(coroutine).__name__
            raise TypeError(
                f"task {name!r} needs a coroutine, got {kind}: call an 'async def' that awaits it"
            ) from None
        self._woken = loop.woken
        self._waiting: Awaited | int | None = _START  # None: the task runs, or was woken
        self._polled: Awaited | int | None = None  # the object awaited in the last poll
        self._injected: CancelledError | None = None  # raised in the coroutine when it runs next
        self._pending: list[CancelledError] = []  # interruptions to raise when the task waits next
        self._cancellation: CancelledError | None = None
        self._result: T
        self._error: BaseException | None = None
        self._woken.append(self)

    @property
    def cancelled(self) -> bool:
        """Whether the task has ended because it was cancelled."""
        return self._error is not None and self._error is self._cancellation

    @property
    def waits_for(self) -> str:
        """Description of the object or time that the task waits for; empty if it does not wait."""
        awaited = self._waiting
        return "" if awaited is None else f"{awaited} ns" if isinstance(awaited, int) else str(awaited)

    @property
    def state(self) -> str:
        """Description of the task's state and of the program's line at which it is, to follow the task's name in a sentence.
        If it waits for another task, that task's state is included."""
        phrases: list[str] = []
        task: Task[Any] = self
        seen = {self.number}
        while True:
            location = program_line(task.frames())
            phrases.append(task._activity + (f", at {location}" if location else ""))
            if not isinstance(task._waiting, Task) or task._waiting.number in seen:
                return "; that task ".join(phrases)
            task = task._waiting
            seen.add(task.number)

    @property
    def _activity(self) -> str:
        awaited = self._waiting
        if awaited is None:
            just_polled = self.last_poll is not None and self._loop.now() - self.last_poll < _POLL_DISPLAY_TIME
            return "polls" if just_polled else "runs"
        if isinstance(awaited, int):
            return f"sleeps, for {max(0, awaited - self._loop.now()):,} ns more"
        return "polls" if awaited.done else f"waits for {awaited}"

    def frames(self) -> list[FrameType]:
        """Return the stack where the task waits, or polled last, the innermost frame last. A running coroutine's frames are
        not included."""
        awaited = self._waiting if self._waiting is not None else self._polled
        frames = suspended_frames(self._coroutine)
        if isinstance(awaited, Task):  # its frames belong to another program
            return frames
        return frames + (awaited.frames() if isinstance(awaited, HasStack) else [])

    def result(self) -> T:
        """Return the coroutine's result, or raise the error that ended it (also CancelledError)."""
        if not self.done:
            raise RuntimeError(f"task {self.name!r} has not ended and has no result")
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> None:
        """Raise CancelledError in the task, where it waits or will wait next. A task that has not started never starts."""
        if self._cancellation is None:
            self._cancellation = CancelledError(f"task {self.name!r} was cancelled")
        self.interrupt(self._cancellation)

    def interrupt(self, error: CancelledError) -> None:
        """Raise an error in the task, where it waits or will wait next."""
        if self._waiting is not None:
            self._throw(error)
        elif not self.done and error is not self._injected and error not in self._pending:
            self._pending.append(error)

    def withdraw(self, error: CancelledError) -> None:
        """Withdraw an interruption that has not been raised yet."""
        if error in self._pending:
            self._pending.remove(error)

    def close(self) -> list[object]:
        """End the task where it waits, without the loop: its ``finally`` blocks run, and they cannot wait. Return the
        coroutines that still wait; the caller must keep them, since freeing them would resume them."""
        loop = self._loop
        chain = await_chain(self._coroutine)
        loop.current = self
        loop.in_task = True
        try:
            self._coroutine.close()
        except Exception:
            if not any(_is_alive(coroutine) for coroutine in chain):
                raise
        finally:
            loop.in_task = False
            self._end(CancelledError(f"task {self.name!r} was closed"))
        return [coroutine for coroutine in chain if _is_alive(coroutine)]

    def wake(self, awaited: object) -> None:
        """Wake the task if it still waits for `awaited`, which is done."""
        if awaited is self._waiting:
            self._waiting = None
            self._woken.append(self)

    def call(self, _now: int) -> None:
        """Run the coroutine until it waits. For the loop only."""
        loop = self._loop
        loop.current = self
        loop.in_task = True
        self._waiting = None
        try:
            if self._injected is None:
                awaited = self._send(None)
            else:
                injected, self._injected = self._injected, None
                awaited = self._coroutine.throw(injected)
        except StopIteration as stop:
            self._result = stop.value
            self._end(None)
            return
        except BaseException as error:
            if not self._end_with_error(error):
                error.add_note(f"in task {self.name!r} at {loop.now()} ns")
                raise
            return
        finally:
            loop.in_task = False
        if type(awaited) is int:
            self._waiting = awaited
            self.sequence = loop.events.schedule(awaited, self)
        elif awaited.done:  # type: ignore[union-attr]  # isinstance would satisfy mypy, but is slower
            self._waiting = awaited
            self.last_poll = loop.now()
            self._polled = awaited
            if not self._pending:
                loop.start_poll(self, awaited)
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
        self._injected = error
        if waiting is not _START:  # a task that has not started is already among the woken tasks
            self._woken.append(self)

    def _end_with_error(self, error: BaseException) -> bool:
        """End with an error; return whether the error is handled: it is the cancellation, or a task awaits this one and gets
        it."""
        is_awaited = bool(self._callbacks) and isinstance(error, (Exception, CancelledError))
        self._end(error)
        return is_awaited or error is self._cancellation

    def _end(self, error: BaseException | None) -> None:
        self.done = True
        self._error = error
        self._waiting = None
        self.sequence = 0
        self._pending.clear()
        self._loop.forget(self)
        self._run_callbacks()

    def __await__(self) -> Generator[Awaited, None, T]:
        if not self.done:
            yield self
        return self.result()

    def __str__(self) -> str:
        return f"the end of task {self.name!r}"


def _is_alive(coroutine: object) -> bool:
    return any(getattr(coroutine, name, None) is not None for name in ("cr_frame", "gi_frame", "ag_frame"))

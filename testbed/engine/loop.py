"""Event loop: callbacks at times and on ready file descriptors, and tasks, in a defined order.

The loop neither reads a clock nor blocks: a `Waiter` does both for it. So the same loop runs on a wall clock with file
descriptors and on a virtual clock that jumps to the next event.

One turn of the loop waits until the earliest timer is due or a descriptor is ready. It calls the callbacks of ready
descriptors, in the order of registration, and then those of the timers that are due, by time and by the order in which
they were set. Woken tasks run before the next due callback, in the order of waking. During a callback a virtual clock shows
the time for which the callback was set.

A task that awaits an object that is already done is polling. On the wall clock it runs again after the descriptors and the
timers were checked once. On a virtual clock each poll takes `Loop.poll_time`. After 100 polls without any other event the
polls become longer, but end at the next event. So a poll sees the event at its time, and a program that polls for a minute
without success is simulated quickly. If no event is left, polling stops, and the task is reported as a deadlock.

This module also contains the clocks of models. A virtual clock stops while callbacks run and jumps to the next event. A
dilated clock is k times slower than another clock: 1 us of the model takes k us of the machine's time, so that the
machine's scheduling latency is small in comparison. The wall clock is in `testbed.kernel.waiter`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Any, Final, Protocol, TypeVar

from testbed.engine.coroutines import make_sleep
from testbed.engine.tasks import Task, Work
from testbed.engine.tracebacks import stack_frames
from testbed.engine.waitables import CancelledError, DeadlockError
from testbed.fabric.event_heap import heappop
from testbed.fabric.event_queue import NOW, EventQueue, ScheduledEvent, Timer

T = TypeVar("T")

_MAX_BURST: Final = 1_000
"""Maximum of task steps between two checks of the descriptors, so that tasks that wake each other do not starve them."""

POLL_TIME: Final = 200
"""Nanoseconds of model time that a poll takes without a profile. Our choice: about the time of an unsuccessful MPI_Test on
a current host. With 0, a program that polls would never let the time advance."""

_CONSTANT_POLLS: Final = 100
"""Number of consecutive unsuccessful polls that take `poll_time`. Each further poll takes `poll_time` more than the last:
a millisecond of polling is 200 polls, a second 3,300, a minute 25,000."""

_MAX_IDLE_POLLS: Final = 35_000
"""Number of consecutive polls, about two minutes, after which a task that polls without pending events is deadlocked."""

_MIN_DILATED_POLL: Final = 1_000
"""Minimum of nanoseconds that a poll takes on a dilated clock, so that the machine can keep up."""


class Waiter(Protocol):
    """A clock on which a loop waits. Times are integer nanoseconds of this clock."""

    __slots__ = ()

    def now(self) -> int: ...

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Wait until a watched descriptor is ready or the deadline has passed (None: no deadline); return the ready
        descriptors."""
        ...

    def watch(self, descriptor: int) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


class VirtualClock(Waiter):
    """A clock that begins at 0 ns and moves only when a loop waits or sets it. It cannot watch descriptors."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = 0
        """Current time in nanoseconds. The loop that runs on the clock advances it."""

    def now(self) -> int:
        return self.time

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Jump to the deadline; without a deadline, the time stays."""
        if deadline is not None and deadline > self.time:
            self.time = deadline
        return ()

    def watch(self, descriptor: int) -> None:
        raise ValueError(f"cannot wait on file descriptor {descriptor} in simulated time")

    def unwatch(self, descriptor: int) -> None:
        raise ValueError(f"descriptor {descriptor} is not watched: a virtual clock watches none")


class DilatedClock(VirtualClock):
    """A virtual clock that never runs ahead of a base clock slowed by a factor.

    A model runs on it as on a virtual clock. An event happens at the time for which it was set, and later events are
    relative to that time, however late the machine was; so delays do not accumulate. External events have the time that
    `from_base_time` returns.

    factor: nanoseconds of the base clock for one nanosecond of this clock, 1 or more. origin: the base clock's time, in
    nanoseconds, at which this clock shows 0; processes with the same factor and origin share the clock.
    """

    __slots__ = ("_waiter", "factor", "origin")

    def __init__(self, waiter: Waiter, factor: int, origin: int = 0) -> None:
        if factor < 1:
            raise ValueError(f"factor of a dilated clock must be 1 or more, got {factor}")
        super().__init__()
        self._waiter = waiter
        self.factor = factor
        self.origin = origin

    def reached(self) -> int:
        """Return the time of this clock at the base clock's current time. `time` is earlier while events are pending."""
        return self.from_base_time(self._waiter.now())

    def from_base_time(self, base_time: int) -> int:
        """Convert a time of the base clock to a time of this clock."""
        return (base_time - self.origin) // self.factor

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Wait on the base clock; the time of this clock is not set."""
        return self._waiter.wait(None if deadline is None else self.origin + deadline * self.factor)

    def watch(self, descriptor: int) -> None:
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._waiter.unwatch(descriptor)


def _ignore(_: BaseException) -> None:
    """Do nothing: the default of `Loop.on_failure`."""


class Loop:
    """Event loop that runs until `stop`; on a virtual clock also until no event is left."""

    def __init__(self, waiter: Waiter, poll_time: int = POLL_TIME) -> None:
        """poll_time: nanoseconds that a poll takes on a virtual clock, more than 0."""
        self.now: Final = waiter.now
        """Returns the time, in integer nanoseconds of the waiter's clock."""
        self.sleep: Final = make_sleep(waiter.now)
        """``await loop.sleep(nanoseconds)``; 0 lets everything run that is due now."""
        self.current: Task[Any] | None = None
        """The running task, or the last one that ran."""
        self.in_task = False
        """Whether a task runs: a step of it, or its ``finally`` blocks in `close`. Tasks set it."""
        self._run_frame: FrameType | None = None  # of `run`, or of its caller if `run` is compiled and has no frame
        self.events: Final = EventQueue()
        """Callbacks, timers, sleeping tasks, and events of networks."""
        self.at: Final = self.events.at
        """``at(when, callback, argument)`` calls callback(argument) once at time `when`, or callback(now) without an
        argument. Use a timer for a call that may be cancelled."""
        self.woken: Final[deque[Task[Any]]] = deque()
        """Tasks to run before the next event. For tasks only."""
        self._waiter = waiter
        self._wait: Final = waiter.wait
        self._watched: dict[int, Callable[[int], object]] = {}
        self._tasks: dict[int, Task[Any]] = {}
        self._spawned = 0
        self.running = False
        """Whether `run` is active, and neither `stop` nor `fail` has ended it."""
        self.unclosed: Final[list[object]] = []
        """Coroutines that still wait after they were closed. They are kept, since freeing them would resume them."""
        self._failure: BaseException | None = None
        self.on_failure: Callable[[BaseException], object] = _ignore
        """Called with the error that `run` will raise, as soon as it occurs: `run` may return much later, if a task catches
        the error."""
        self._virtual = isinstance(waiter, VirtualClock)
        self._dilated = waiter if isinstance(waiter, DilatedClock) else None
        self.polling: Final[list[tuple[int, Task[Any], object]]] = []
        """Polling tasks: end of the poll (0 on the wall clock), task, and awaited object. On the wall clock they run again
        after the next check of the descriptors."""
        self.on_poll: Callable[[Task[Any], bool], object] | None = None
        """Called on a virtual clock with a task that polls: True when a poll begins, False when it ends."""
        self.poll_time: Final = poll_time
        self._stop_timer: Final = Timer(self.events, lambda _: self.stop())
        self._poll_timer: Final = Timer(self.events, self._end_polls)
        self._poll_count = 0  # consecutive polls without any other event
        self._is_extended = False  # whether the current polls were extended
        self._next_event: int | None = None  # time of the next event when the last poll ended
        self._last_scheduled = 0  # `scheduled_count` when the last poll ended
        self._internal_entries = 0  # queue entries of `_poll_timer` and `_stop_timer`

    def timer(self, callback: Callable[[int], object]) -> Timer:
        """Make a timer that is not set yet and calls callback(now)."""
        return Timer(self.events, callback)

    def watch(self, descriptor: int, callback: Callable[[int], object]) -> None:
        """Call callback(now) whenever the descriptor is readable."""
        self._watched[descriptor] = callback
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._waiter.unwatch(descriptor)

    def spawn(self, work: Work[T], name: str, *, service: bool = False) -> Task[T]:
        """Run a coroutine as a task, which starts after the current callback or step has returned. service: the task may
        wait forever without being reported as a deadlock."""
        self._spawned += 1
        self._tasks[self._spawned] = task = Task(self, work, name, self._spawned, service)
        return task

    def forget(self, task: Task[Any]) -> None:
        """Remove a task that has ended. For tasks only."""
        self._tasks.pop(task.number, None)

    def start_poll(self, task: Task[Any], awaited: object) -> None:
        """Let other tasks run before a task that awaits an object that is already done. For tasks only."""
        if not self._virtual:
            self.polling.append((0, task, awaited))
            return
        if self.on_poll is not None:
            self.on_poll(task, True)
        poll_time = task.poll_time or self.poll_time
        end = self.now() + poll_time
        if self._dilated is not None:
            end = max(self.now() + max(poll_time, _MIN_DILATED_POLL), self._dilated.reached())
        self.polling.append((end, task, awaited))
        if self._poll_timer.when is None:
            self._set_internal(self._poll_timer, end)

    def scheduled_count(self) -> int:
        """Return the number of callbacks, timers and sleeps that have been set so far."""
        return self.events.scheduled - self._internal_entries

    def stop_at(self, when: int | None) -> None:
        """Stop `run` at time `when` (None: not at all). Unlike an event, it does not end polls."""
        self._set_internal(self._stop_timer, when)

    @property
    def stop_time(self) -> int | None:
        """The time set by `stop_at`, or None."""
        return self._stop_timer.when

    def _set_internal(self, timer: Timer, when: int | None) -> None:
        if when is not None and when != timer.when:
            self._internal_entries += 1
        timer.set(when)

    def _end_polls(self, now: int) -> None:
        """End the polls that are due, unless they are extended."""
        next_event = self.events.next_time()
        if next_event is not None and self.events.entries[0][3] is self._stop_timer:
            next_event = None
        if self._dilated is None and self._extend_polls(now, next_event):
            return
        ended = [poll for poll in self.polling if poll[0] <= now]
        self.polling[:] = [poll for poll in self.polling if poll[0] > now]
        for _, task, awaited in ended:
            if self.on_poll is not None:
                self.on_poll(task, False)
            task.wake(awaited)
        if self.polling:
            self._set_internal(self._poll_timer, min(when for when, _, _ in self.polling))
        self._next_event = next_event
        self._last_scheduled = self.scheduled_count()

    def _extend_polls(self, now: int, next_event: int | None) -> bool:
        """Extend the current polls, at most until the next event; return False if they end now. next_event: time of the
        next event; None: there is none."""
        if self._is_extended:
            self._is_extended = False
            return False
        if self.scheduled_count() != self._last_scheduled or (self._next_event is not None and self._next_event <= now):
            self._poll_count = 0
        self._poll_count += 1
        if next_event is None and self._poll_count > _MAX_IDLE_POLLS:
            return True
        extension = max(0, self._poll_count - _CONSTANT_POLLS) * self.poll_time
        end = now + extension if next_event is None else min(now + extension, next_event)
        if end <= now:
            return False
        self._is_extended = True
        self._set_internal(self._poll_timer, end)
        return True

    async def timeout(self, nanoseconds: int, awaitable: Awaitable[T]) -> T:
        """Await with a timeout; return the result. After the timeout the awaitable is interrupted where it waits, as by
        `Task.cancel`, and TimeoutError is raised."""
        task = self.current
        if task is None:
            raise RuntimeError("timeout() must be awaited within a task")
        expiry = CancelledError(f"{nanoseconds} ns have passed")
        timer = self.timer(lambda _: task.interrupt(expiry))
        timer.set(self.now() + nanoseconds)
        try:
            return await awaitable
        except CancelledError as error:
            if error is not expiry:
                raise
            raise TimeoutError(f"not done within {nanoseconds} ns") from None
        finally:
            timer.set(None)
            task.withdraw(expiry)

    def task_frames(self, innermost: FrameType | None) -> list[FrameType]:
        """Return the running task's part of a stack, the innermost frame last; empty if no task runs. innermost: the stack's
        innermost frame."""
        if not self.in_task:
            return []
        frames = stack_frames(innermost)
        # `run` is not in the stack of a program that runs on a separate stack.
        return frames[frames.index(self._run_frame) + 1 :] if self._run_frame in frames else frames

    def complete(self, work: Work[T], name: str = "main") -> T:
        """Run until a coroutine has ended; return its result. Other tasks continue when the loop runs again."""
        task = self.spawn(work, name)
        task.add_callback(lambda _: self.stop())
        self.run()
        return task.result()

    def run(self) -> None:
        """Run until `stop` is called; on a virtual clock also until no event is left. Raises DeadlockError if tasks still
        wait then, and the error of `fail`."""
        if self.running:
            raise RuntimeError("the loop is running already")
        self.running = True
        self._run_frame = sys._getframe()
        try:
            if self._dilated is not None:
                self._run_dilated(self._dilated)
            elif isinstance(self._waiter, VirtualClock):
                if self.polling and self._poll_timer.when is None:  # polls that did not end in the last run
                    self._poll_count = 0
                    self._set_internal(self._poll_timer, self.now())
                self._run_virtual(self._waiter)
            else:
                while self.running:
                    self.turn()
        except Exception:
            if self._failure is None:
                raise
        finally:
            self.running = False
            self._run_frame = None
        if self._failure is not None:
            raise self._failure

    @property
    def failure(self) -> BaseException | None:
        """The error that `run` raises, or will raise when it returns."""
        return self._failure

    def fail(self, error: BaseException) -> None:
        """End `run` with this error, even if a task that it passes through catches it."""
        if self._failure is None:
            self._failure = error
            self.on_failure(error)
        self.running = False

    def stop(self) -> None:
        """End `run` after the current turn; on a virtual clock after the current callback or task step."""
        self.running = False

    def close(self) -> None:
        """End all tasks where they wait, in the order in which they were spawned; their ``finally`` blocks run. If tasks
        raise errors, the first is raised when all tasks have ended."""
        if self.running:
            raise RuntimeError("the loop is running: stop it, and close it when run() has returned")
        errors = []
        for task in list(self._tasks.values()):
            try:
                self.unclosed.extend(task.close())
            except Exception as error:  # noqa: BLE001  the remaining tasks must end, too
                errors.append(error)
        self.woken.clear()
        self.polling.clear()
        if errors:
            raise errors[0]

    def abandon(self) -> list[Task[Any]]:
        """Drop all tasks of a loop whose `run` will not return. Return the tasks: the caller must keep them, since freeing
        them would resume them."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self.woken.clear()
        self.polling.clear()
        self.running = False
        return tasks

    def turn(self) -> None:
        """Wait once, then call the callbacks that are ready or due."""
        now = self.now
        heap = self.events.entries
        woken = self.woken
        polling = self.polling
        poll_count = len(polling)
        deadline = self.events.next_time() if heap else None
        for descriptor in self._wait(now() if woken or poll_count else deadline):
            on_ready = self._watched.get(descriptor)
            if on_ready is not None:  # another callback may have unwatched it
                on_ready(now())
        if poll_count:  # tasks that have begun to poll meanwhile wait for the next turn
            for _, task, awaited in polling[:poll_count]:
                task.wake(awaited)
            del polling[:poll_count]
        if woken:
            self.run_woken(now())
        if not heap:
            return
        time = now()
        while heap and heap[0][0] <= time:
            _, sequence, callback, argument = heappop(heap)
            if callback is not None:
                callback(time if argument is NOW else argument)
            else:
                event: ScheduledEvent = argument
                if event.sequence == sequence:
                    event.call(time)
            if woken:
                self.run_woken(now())

    def run_woken(self, now: int) -> None:
        """Run the woken tasks and the tasks that they wake, at most `_MAX_BURST` steps."""
        woken = self.woken
        woken.popleft().call(now)
        steps = 1
        while woken and steps < _MAX_BURST:
            woken.popleft().call(now)
            steps += 1

    def _run_virtual(self, clock: VirtualClock) -> None:
        """Run on a virtual clock, without waiting for descriptors."""
        heap = self.events.entries
        woken = self.woken
        pop = heappop
        next_woken = woken.popleft
        now = clock.time
        while self.running:
            if woken:
                next_woken().call(now)
            elif heap:
                when, sequence, callback, argument = pop(heap)
                if callback is None:
                    event: ScheduledEvent = argument
                    if event.sequence == sequence:
                        if when > now:
                            clock.time = now = when
                        event.call(now)
                else:
                    if when > now:
                        clock.time = now = when
                    callback(now if argument is NOW else argument)
            else:
                self._raise_deadlock()
                return

    def _run_dilated(self, clock: DilatedClock) -> None:
        """Run as on a virtual clock, but no event before the base clock has reached its time. Descriptors come first: their
        callbacks may schedule events before those that are due."""
        events = self.events
        woken = self.woken
        while self.running:
            ready = self._wait(clock.time if woken else events.next_time())
            reached = clock.reached()
            for descriptor in ready:
                on_ready = self._watched.get(descriptor)
                if on_ready is not None:  # another callback may have unwatched it
                    on_ready(clock.time)
            while self.running:
                if woken:
                    woken.popleft().call(clock.time)
                    continue
                when = events.next_time()
                if when is None or when > reached:
                    break
                _, _, callback, argument = heappop(events.entries)
                clock.time = now = max(when, clock.time)
                if callback is None:
                    argument.call(now)
                else:
                    callback(now if argument is NOW else argument)

    def _raise_deadlock(self) -> None:
        waiting = [task for task in self._tasks.values() if not task.service]
        if waiting:
            lines = (f"  task {task.name!r} {task.state}" for task in waiting)
            raise DeadlockError("\n".join([f"at {self.now()} ns no event is pending", *lines]))

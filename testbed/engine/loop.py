"""Event loop: callbacks at times and on ready file descriptors, and tasks, in a defined order.

It has no clock and does not block itself: a `Waiter` does both, so that the same loop runs on a wall clock with file
descriptors and on a virtual one that jumps to the next event.

One turn: wait until the earliest timer or a ready descriptor; call the callbacks of ready descriptors, in the order of
registration; then those that are due, the earliest first, equal times in the order in which they were set. Woken tasks run
before the next due callback, in the order of waking. During each callback a virtual clock shows the time for which it was
set.

A task that awaits something that is done already is polling. On the machine's clock it runs again after one look at the
descriptors and the timers. On a virtual clock each poll takes time: `Loop.poll_time`. After a hundred polls between which
nothing else has happened they become longer and longer, but end at the next event: the poll finds it at its time, and a
program that polls for a minute in vain is simulated quickly. Where no event is left either, polls are given up in the end,
and the task is reported as one that waits for ever.

The clocks of models are here, too: a virtual one stands still while callbacks run and jumps to the next event. A dilated one
is k times slower than another: 1 us of the model takes k us of the machine's time, beside which the machine's own lateness
is small. The machine's own is `testbed.kernel.waiter`.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from heapq import heappop, heappush
from types import FrameType
from typing import Any, Final, Protocol, TypeVar, overload

from testbed.engine.tasks import Task, Work
from testbed.engine.tracebacks import stack
from testbed.engine.waitables import CancelledError, DeadlockError, Until

T = TypeVar("T")
A = TypeVar("A")

_BURST: Final = 1_000
"""Steps of tasks between two looks at the descriptors: tasks that wake each other for ever shall not hide them."""

NEVER: Final = 1 << 63
"""Later than any time."""

POLL_TIME: Final = 200
"""Nanoseconds of model time that a poll takes without a profile. Our choice: about the time of an unsuccessful MPI_Test on
a present host. It must not be 0, or time would stand still for a program that polls."""

_EXACT: Final = 100
"""Consecutive polls in vain that take `poll_time`. Each further one takes `poll_time` more than the last: a millisecond is
200 polls, a second 3,300, a minute 25,000."""

_MAX: Final = 35_000
"""Consecutive polls, about two minutes, after which a task polls for ever where no event is left."""

_DILATED_POLL: Final = 1_000
"""Minimum of nanoseconds that a poll takes on a dilated clock, where the machine has to keep up."""

NOW: Final = object()
"""Placeholder in the heap for the argument of a callback that is called with the time."""


class Waiter(Protocol):
    """A clock on which a loop waits. Times are its own, in integer nanoseconds."""

    def now(self) -> int: ...

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Wait until a watched descriptor is ready or the deadline (None: never) has come; return the ready ones."""
        ...

    def watch(self, descriptor: int) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


class VirtualClock:
    """A clock that begins at 0 ns and moves only when a loop waits or sets it. It cannot watch descriptors."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = 0
        """The present time, in nanoseconds. A loop that runs on the clock sets it, forwards only."""

    def now(self) -> int:
        return self.time

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Jump to the deadline; without one, the time stays."""
        if deadline is not None and deadline > self.time:
            self.time = deadline
        return ()

    def watch(self, descriptor: int) -> None:
        raise ValueError(f"cannot wait on file descriptor {descriptor} in simulated time")

    def unwatch(self, descriptor: int) -> None:
        raise ValueError(f"descriptor {descriptor} is not watched: a virtual clock watches none")


class DilatedClock(VirtualClock):
    """A virtual clock that does not run ahead of a slower copy of another waiter's clock.

    A model runs on it as on a virtual clock: an event has the time for which it was set, and later ones count from there,
    however late the machine was; so lateness does not add up. Events from outside have the time that `shown` returns.

    factor: nanoseconds of the other clock for one of this one, 1 or more. origin: the other clock's time, in nanoseconds,
    at which this one shows 0; processes with the same factor and origin share the clock.
    """

    __slots__ = ("_waiter", "factor", "origin")

    def __init__(self, waiter: Waiter, factor: int, origin: int = 0) -> None:
        if factor < 1:
            raise ValueError(f"a clock cannot be slowed {factor} times: the factor is 1 or more")
        super().__init__()
        self._waiter = waiter
        self.factor = factor
        self.origin = origin

    def reached(self) -> int:
        """Return our time at the other clock's present time; `time` is behind it while events are not processed yet."""
        return self.shown(self._waiter.now())

    def shown(self, moment: int) -> int:
        """Convert a time of the other clock to ours."""
        return (moment - self.origin) // self.factor

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Wait on the other clock; our time is not set."""
        return self._waiter.wait(None if deadline is None else self.origin + deadline * self.factor)

    def watch(self, descriptor: int) -> None:
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._waiter.unwatch(descriptor)


class Timer:
    """A callback whose time can be set repeatedly. At most one of its entries in the heap is valid."""

    __slots__ = ("_callback", "_loop", "sequence", "when")

    def __init__(self, loop: Loop, callback: Callable[[int], object]) -> None:
        self._loop = loop
        self._callback = callback
        self.sequence = 0
        """Sequence number of the valid entry in the loop's heap; 0: none."""
        self.when: int | None = None
        """When the callback will be called, or None."""

    def set(self, when: int | None) -> None:
        """Set the time of the call (None: never), in place of the time before."""
        if when == self.when:
            return
        self.when = when
        if when is None:
            self.sequence = 0
        else:
            loop = self._loop
            self.sequence = sequence = loop.next_sequence()
            heappush(loop.heap, (when, sequence, None, self))

    def call(self, now: int) -> None:
        """Call the callback, which is due. For the loop only."""
        self.when = None
        self.sequence = 0
        self._callback(now)


# Time, sequence number, callback and argument; or, without a callback, a timer or a sleeping task, whose entry is valid
# only while it has this entry's sequence number. `at` checks that an argument fits its callback; the type of a heap of
# many cannot, therefore Any.
_Entry = tuple[int, int, Callable[[Any], object] | None, Any]


def _ignore(_: BaseException) -> None:
    """Do nothing: the default of `Loop.on_failure`."""


class Loop:
    """Event loop that runs until `stop`; on a virtual clock also until no event is left."""

    def __init__(self, waiter: Waiter, poll_time: int = POLL_TIME) -> None:
        """poll_time: nanoseconds that a poll takes on a virtual clock, more than 0."""
        self.now: Final = waiter.now
        """Returns the time, in integer nanoseconds of the waiter's clock."""
        self.current: Task[Any] | None = None
        """The task that ran last: within a task, this one."""
        self.in_task = False
        """Whether a step of a task runs at this moment. For tasks to set."""
        self._began: FrameType | None = None  # the frame of `run`, or, where it is compiled and has none, of its caller
        # The next three attributes are for timers and tasks only.
        self.heap: Final[list[_Entry]] = []
        self.woken: Final[deque[Task[Any]]] = deque()
        self.next_sequence: Final = itertools.count(1).__next__
        self._waiter = waiter
        self._wait: Final = waiter.wait
        self._watched: dict[int, Callable[[int], object]] = {}
        self._tasks: dict[int, Task[Any]] = {}
        self._spawned = 0
        self.running = False
        """Whether `run` shall continue."""
        self.refused: Final[list[object]] = []
        """Coroutines that were closed and wait all the same. Freeing them would resume them."""
        self._failure: BaseException | None = None
        self.on_failure: Callable[[BaseException], object] = _ignore
        """Called at once with the error that `run` will raise: a task that catches it may run on for long."""
        self._virtual = isinstance(waiter, VirtualClock)
        self._dilated = waiter if isinstance(waiter, DilatedClock) else None
        self.polling: Final[list[tuple[int, Task[Any], object]]] = []
        """The tasks that poll: when the poll is over at the earliest, the task, and what it awaits. On the machine's clock
        they run again after the next look at the descriptors."""
        self.on_poll: Callable[[Task[Any], bool], object] | None = None
        """Called on a virtual clock with a task that polls: True when a poll begins, False when it ends."""
        self.poll_time: Final = poll_time
        self._end: Final = Timer(self, lambda _: self.stop())
        self._polls_end: Final = Timer(self, self._end_polls)
        self._polls = 0  # consecutive ones, between which nothing else has happened
        self._is_longer = False  # the polls under way have been made longer
        self._next_event: int | None = None  # `next_time` when the last poll ended
        self._scheduled = 0  # `scheduled` when the last poll ended
        self._own_entries = 0  # heap entries for polls and for the end of a run

    def timer(self, callback: Callable[[int], object]) -> Timer:
        """Make a timer, not set yet. callback(now)."""
        return Timer(self, callback)

    @overload
    def at(self, when: int, callback: Callable[[int], object]) -> None: ...
    @overload
    def at(self, when: int, callback: Callable[[A], object], argument: A) -> None: ...
    def at(self, when: int, callback: Callable[[Any], object], argument: object = NOW) -> None:
        """Call once at that time: callback(argument), or callback(now) without an argument. Use a timer for a call that may
        be cancelled."""
        heappush(self.heap, (when, self.next_sequence(), callback, argument))

    def watch(self, descriptor: int, callback: Callable[[int], object]) -> None:
        """Call callback(now) whenever the descriptor is readable."""
        self._watched[descriptor] = callback
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._waiter.unwatch(descriptor)

    def spawn(self, work: Work[T], name: str, *, service: bool = False) -> Task[T]:
        """Run a coroutine as a task, which starts after the present callback or step has returned. service: it may wait for
        ever without being reported as a deadlock."""
        self._spawned += 1
        self._tasks[self._spawned] = task = Task(self, work, name, self._spawned, service)
        return task

    def forget(self, task: Task[Any]) -> None:
        """Remove a task that has ended. For tasks only."""
        self._tasks.pop(task.number, None)

    def give_way(self, task: Task[Any], awaited: object) -> None:
        """Let others run before a task that polls, which awaits something that is done. For tasks only."""
        if not self._virtual:
            self.polling.append((0, task, awaited))
            return
        if self.on_poll is not None:
            self.on_poll(task, True)
        poll_time = task.poll_time or self.poll_time
        over = self.now() + poll_time
        if self._dilated is not None:
            over = max(self.now() + max(poll_time, _DILATED_POLL), self._dilated.reached())
        self.polling.append((over, task, awaited))
        if self._polls_end.when is None:
            self._set_own(self._polls_end, over)

    def scheduled(self) -> int:
        """Return how many callbacks, timers and sleeps have been set so far."""
        self._own_entries += 1  # the number that is used up here
        return self.next_sequence() - self._own_entries

    def end_at(self, when: int | None) -> None:
        """Stop `run` at that time (None: not at all). Polls do not end at it, as at an event."""
        self._set_own(self._end, when)

    @property
    def ends(self) -> int | None:
        """When `run` will be stopped (`end_at`), or None."""
        return self._end.when

    def _set_own(self, timer: Timer, when: int | None) -> None:
        if when is not None and when != timer.when:
            self._own_entries += 1
        timer.set(when)

    def _end_polls(self, now: int) -> None:
        """End the first of the polls under way, unless it is made longer."""
        following = self.next_time()
        if following is not None and self.heap[0][3] is self._end:
            following = None
        if self._dilated is None and self._put_off(now, following):
            return
        over = [poll for poll in self.polling if poll[0] <= now]
        self.polling[:] = [poll for poll in self.polling if poll[0] > now]
        for _, task, awaited in over:
            if self.on_poll is not None:
                self.on_poll(task, False)
            task.wake(awaited)
        if self.polling:
            self._set_own(self._polls_end, min(when for when, _, _ in self.polling))
        self._next_event = following
        self._scheduled = self.scheduled()

    def _put_off(self, now: int, following: int | None) -> bool:
        """Make the polls under way longer, at most until the next event; return whether that was done. following: the next
        event's time."""
        if self._is_longer:
            self._is_longer = False
            return False
        if self.scheduled() != self._scheduled or (self._next_event is not None and self._next_event <= now):
            self._polls = 0
        self._polls += 1
        if following is None and self._polls > _MAX:
            return True
        longer = max(0, self._polls - _EXACT) * self.poll_time
        until = now + longer if following is None else min(now + longer, following)
        if until <= now:
            return False
        self._is_longer = True
        self._set_own(self._polls_end, until)
        return True

    def sleep(self, nanoseconds: int) -> Until:
        """Sleep: ``await loop.sleep(ns)``; 0 lets everything else run that is due now."""
        return Until(self.now() + nanoseconds)

    def sleep_until(self, when: int) -> Until:
        return Until(when)

    async def timeout(self, nanoseconds: int, awaitable: Awaitable[T]) -> T:
        """Await with a timeout; return the result. TimeoutError after so many nanoseconds: the awaitable is interrupted
        where it waits, as in `cancel`."""
        task = self.current
        if task is None:
            raise RuntimeError("timeout() is awaited within a task")
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
            task.spare(expiry)

    def task_frames(self, innermost: FrameType | None) -> list[FrameType]:
        """Return the stack of the running task, the innermost frame last, of the stack given by its innermost frame. Empty
        where no task runs."""
        if not self.in_task:
            return []
        frames = stack(innermost)
        return frames[frames.index(self._began) + 1 :] if self._began in frames else frames  # a program's own stack

    def complete(self, work: Work[T], name: str = "main") -> T:
        """Run until a coroutine has ended; return its result. Other tasks stay where they are."""
        task = self.spawn(work, name)
        task.add_callback(lambda _: self.stop())
        self.run()
        return task.result()

    def run(self) -> None:
        """Run until `stop` is called; on a virtual clock also until no event is left: DeadlockError if tasks wait then."""
        if self.running:
            raise RuntimeError("the loop runs already")
        self.running = True
        self._began = sys._getframe()
        try:
            if self._dilated is not None:
                self._run_dilated(self._dilated)
            elif isinstance(self._waiter, VirtualClock):
                if self.polling and self._polls_end.when is None:  # they were in vain until the last run ended
                    self._polls = 0
                    self._set_own(self._polls_end, self.now())
                self._run_virtual(self._waiter)
            else:
                while self.running:
                    self.turn()
        except Exception:
            if self._failure is None:
                raise
        finally:
            self.running = False
            self._began = None
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
        """End `run` after this turn; on a virtual clock after this callback or step of a task."""
        self.running = False

    def close(self) -> None:
        """End all tasks where they wait, in the order in which they were spawned; their ``finally`` blocks run. The first
        error that one raises is raised when all have ended."""
        if self.running:
            raise RuntimeError("the loop runs: stop it, and close it when run() has returned")
        errors = []
        for task in list(self._tasks.values()):
            try:
                self.refused.extend(task.close())
            except Exception as error:  # noqa: BLE001  one's error must not keep the others from ending
                errors.append(error)
        self.woken.clear()
        self.polling.clear()
        if errors:
            raise errors[0]

    def abandon(self) -> list[Task[Any]]:
        """Drop all tasks after `run` was left and will not return; return the tasks, which must not be freed."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self.woken.clear()
        self.polling.clear()
        self.running = False
        return tasks

    def turn(self) -> None:
        """Wait once, then call what is ready and what is due."""
        now = self.now
        heap = self.heap
        woken = self.woken
        polling = self.polling
        polls = len(polling)
        deadline = self.next_time() if heap else None
        for descriptor in self._wait(now() if woken or polls else deadline):
            on_ready = self._watched.get(descriptor)
            if on_ready is not None:  # another callback may have unwatched it
                on_ready(now())
        if polls:  # tasks that began to poll since then wait for the next turn
            for _, task, awaited in polling[:polls]:
                task.wake(awaited)
            del polling[:polls]
        if woken:
            self.go_on()
        if not heap:
            return
        moment = now()
        while heap and heap[0][0] <= moment:
            _, sequence, callback, argument = heappop(heap)
            if callback is not None:
                callback(moment if argument is NOW else argument)
            elif argument.sequence == sequence:
                argument.call(moment)
            if woken:
                self.go_on()

    def next_time(self) -> int | None:
        """Return the time of the heap's first valid entry; None: there is none."""
        heap = self.heap
        while heap:
            when, sequence, callback, argument = heap[0]
            if callback is not None or argument.sequence == sequence:
                return when
            heappop(heap)  # its timer was set to another time since
        return None

    def go_on(self) -> None:
        """Run the woken tasks, and those that they wake, but at most `_BURST` steps."""
        woken = self.woken
        now = self.now()
        for _ in range(_BURST):
            woken.popleft().call(now)
            if not woken:
                break

    def _run_virtual(self, clock: VirtualClock) -> None:
        """Run on a virtual clock, without waiting for descriptors."""
        heap = self.heap
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
                    if argument.sequence == sequence:
                        if when > now:
                            clock.time = now = when
                        argument.call(now)
                else:
                    if when > now:
                        clock.time = now = when
                    callback(now if argument is NOW else argument)
            else:
                self._raise_deadlock()
                return

    def _run_dilated(self, clock: DilatedClock) -> None:
        """Run as on a virtual clock, but no event before the machine's clock has reached its time. Descriptors come first:
        one's callback may schedule an event before others that are due."""
        heap = self.heap
        woken = self.woken
        while self.running:
            ready = self._wait(clock.time if woken else self.next_time())
            moment = clock.reached()
            for descriptor in ready:
                on_ready = self._watched.get(descriptor)
                if on_ready is not None:  # another callback may have unwatched it
                    on_ready(clock.time)
            while self.running:
                if woken:
                    woken.popleft().call(clock.time)
                    continue
                when = self.next_time()
                if when is None or when > moment:
                    break
                _, _, callback, argument = heappop(heap)
                clock.time = now = max(when, clock.time)
                if callback is None:
                    argument.call(now)
                else:
                    callback(now if argument is NOW else argument)

    def _raise_deadlock(self) -> None:
        waiting = [task for task in self._tasks.values() if not task.service]
        if waiting:
            lines = (f"  task {task.name!r} {task.doing}" for task in waiting)
            raise DeadlockError("\n".join([f"at {self.now()} ns nothing is left that could happen", *lines]))

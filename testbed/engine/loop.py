"""The loop: callbacks at times and on ready file descriptors, and tasks, in a defined order.

It knows no clock and waits for nothing itself: it is given something that does (`Waiter`), so that the same loop runs on
a wall clock that waits for file descriptors and on a virtual one that jumps to what comes next.

One turn: wait until the earliest timer or a ready descriptor; call what is ready, in the order of registration; then what
is due, the earliest first, equal times in the order in which they were set. Tasks that have been woken go on before the
next callback that is due, in the order of waking. A virtual clock shows for each callback the time for which it was set.

A task that awaits what is done already only gives way: it polls for something. On a virtual clock, where polling takes no
time, it goes on when something else has happened; if nothing is left that could, it waits for ever and is named as such.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from heapq import heappop, heappush
from types import coroutine
from typing import Any, Final, TypeVar, overload

from testbed.engine.awaiting import CancelledError, DeadlockError
from testbed.engine.clocks import DilatedClock, VirtualClock, Waiter
from testbed.engine.tasks import Task, Work

T = TypeVar("T")
A = TypeVar("A")

_BURST: Final = 1_000
"""Steps of tasks between two looks at the descriptors: tasks that wake each other for ever shall not hide them."""

_POLLS: Final = 2
"""Rounds of polling between two events on a virtual clock: whoever a poller has given way to first may have done something
for it without one."""

_LAST_POLLS: Final = 10_000
"""The same where nothing else is left to happen: what polls so often will poll for ever."""

_LOOK_AGAIN: Final = 1_000
"""Nanoseconds of a dilated clock between two rounds of polling: there what is polled for may come from outside."""

NOW: Final = object()
"""Stands in the heap for the argument of a callback that is called with the time."""


class Timer:
    """One callback whose time can be set again and again. At most one entry of it in the heap counts."""

    __slots__ = ("_callback", "_loop", "sequence", "when")

    def __init__(self, loop: Loop, callback: Callable[[int], object]) -> None:
        self._loop = loop
        self._callback = callback
        self.sequence = 0
        """Which entry of the loop's heap counts; 0: none."""
        self.when: int | None = None
        """When it will be called, or None."""

    def set(self, when: int | None) -> None:
        """Be called at that time (or not at all) instead of when it was to be called before."""
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
        """It is time. For the loop only."""
        self.when = None
        self.sequence = 0
        self._callback(now)


# When, the how-manieth to be set, and what then: callback(argument); or, without a callback, a timer or a sleeping task,
# which counts only while it names this entry's sequence. What fits an argument to its callback is `at`: a list of many
# cannot say it, therefore Any.
_Entry = tuple[int, int, Callable[[Any], object] | None, Any]


class Loop:
    """Runs until `stop`; on a virtual clock also until nothing is left to happen."""

    def __init__(self, waiter: Waiter) -> None:
        self.now: Final = waiter.now
        """The time, integer nanoseconds of the waiter's clock."""
        self.current: Task[Any] | None = None
        """The task that went on last: within a task, this one."""
        # What follows is for timers and tasks only.
        self.heap: Final[list[_Entry]] = []
        self.woken: Final[deque[Task[Any]]] = deque()
        self.next_sequence: Final = itertools.count(1).__next__
        self._waiter = waiter
        self._wait: Final = waiter.wait
        self._watched: dict[int, Callable[[int], object]] = {}
        self._tasks: dict[int, Task[Any]] = {}
        self._spawned = 0
        self.running = False
        """Whether `run` shall go on."""
        self._virtual = isinstance(waiter, VirtualClock)
        self._dilated = waiter if isinstance(waiter, DilatedClock) else None
        self._polling: list[tuple[Task[Any], object]] = []
        self._again: Final = Timer(self, self._poll)
        self._rounds = 0

    def timer(self, callback: Callable[[int], object]) -> Timer:
        """A timer, not set yet. callback(now)."""
        return Timer(self, callback)

    @overload
    def at(self, when: int, callback: Callable[[int], object]) -> None: ...
    @overload
    def at(self, when: int, callback: Callable[[A], object], argument: A) -> None: ...
    def at(self, when: int, callback: Callable[[Any], object], argument: object = NOW) -> None:
        """Call once at that time: callback(argument), or callback(now) where none is given. Use a timer for what may be
        taken back."""
        heappush(self.heap, (when, self.next_sequence(), callback, argument))

    def watch(self, descriptor: int, callback: Callable[[int], object]) -> None:
        """Call whenever the descriptor can be read; callback(now)."""
        self._watched[descriptor] = callback
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._waiter.unwatch(descriptor)

    def spawn(self, work: Work[T], name: str, *, service: bool = False) -> Task[T]:
        """Carry a coroutine on as a task, beginning when what runs now has returned. service: it may wait for ever; where
        nothing else is left that is no deadlock."""
        self._spawned += 1
        self._tasks[self._spawned] = task = Task(self, work, name, self._spawned, service)
        return task

    def forget(self, task: Task[Any]) -> None:
        """A task has ended. For tasks only."""
        self._tasks.pop(task.number, None)

    def give_way(self, task: Task[Any], awaited: object) -> None:
        """A task awaits what is done: others go first. For tasks only."""
        if not self._virtual:
            task.wake(awaited)
            return
        self._polling.append((task, awaited))
        if len(self._polling) == 1:
            if self._dilated is not None:
                self._again.set(self.now() + _LOOK_AGAIN)
                return
            self._rounds += 1
            following = self._next_time()
            if following is not None and self._rounds > _POLLS:
                self._rounds = 0
                self._again.set(following)
            else:
                self._again.set(self.now())

    def _poll(self, _now: int) -> None:
        """Let those go on that have given way, unless they would do so for ever."""
        if self._rounds <= _LAST_POLLS or self._next_time() is not None:
            polling, self._polling = self._polling, []
            for task, awaited in polling:
                task.wake(awaited)

    @coroutine
    def sleep(self, nanoseconds: int) -> Generator[int, None, None]:
        """``await loop.sleep(ns)``: 0 lets everything else go on that is due now."""
        yield self.now() + nanoseconds

    @coroutine
    def sleep_until(self, when: int) -> Generator[int, None, None]:
        yield when

    async def timeout(self, nanoseconds: int, awaitable: Awaitable[T]) -> T:
        """What the awaitable gives. TimeoutError if it takes longer: it is interrupted where it waits, as in `cancel`."""
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

    def complete(self, work: Work[T], name: str = "main") -> T:
        """Run until this coroutine has ended; its result. Other tasks stay where they are."""
        task = self.spawn(work, name)
        task.add_callback(lambda _: self.stop())
        self.run()
        return task.result()

    def run(self) -> None:
        """Run until `stop` is called. On a virtual clock also until nothing is left that could happen: DeadlockError if
        then tasks wait."""
        if self.running:
            raise RuntimeError("the loop runs already")
        self.running = True
        try:
            if self._dilated is not None:
                self._run_dilated(self._dilated)
            elif isinstance(self._waiter, VirtualClock):
                self._rounds = 0
                self._again.set(None)
                self._poll(self.now())  # who has polled in vain until the last run ended
                self._run_virtual(self._waiter)
            else:
                while self.running:
                    self.turn()
        finally:
            self.running = False

    def stop(self) -> None:
        """End `run` after this turn; on a virtual clock after this callback or step of a task."""
        self.running = False

    def close(self) -> None:
        """End all tasks where they wait, in the order in which they were spawned; their ``finally`` blocks run."""
        if self.running:
            raise RuntimeError("the loop runs: stop it, and close it when run() has returned")
        for task in list(self._tasks.values()):
            task.close()
        self.woken.clear()
        self._polling.clear()

    def turn(self) -> None:
        """Wait once, then call what is ready and what is due."""
        now = self.now
        heap = self.heap
        woken = self.woken
        deadline = self._next_time() if heap else None
        for descriptor in self._wait(now() if woken else deadline):
            on_ready = self._watched.get(descriptor)
            if on_ready is not None:  # another one's callback may just have unwatched it
                on_ready(now())
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

    def _next_time(self) -> int | None:
        """Of the heap's first entry that counts."""
        heap = self.heap
        while heap:
            when, sequence, callback, argument = heap[0]
            if callback is not None or argument.sequence == sequence:
                return when
            heappop(heap)  # it was set to another time since
        return None

    def go_on(self) -> None:
        """The tasks that have been woken, and those that they wake, but not for ever."""
        woken = self.woken
        now = self.now()
        for _ in range(_BURST):
            woken.popleft().call(now)
            if not woken:
                break

    def _run_virtual(self, clock: VirtualClock) -> None:
        """From time to time without asking what could be ready."""
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
                self._say_who_waits()
                return

    def _run_dilated(self, clock: DilatedClock) -> None:
        """From time to time as on a virtual clock, but not before the machine's clock has come there. Descriptors are looked
        at first: what one brings may have come before some of what is due (`at`)."""
        heap = self.heap
        woken = self.woken
        while self.running:
            ready = self._wait(clock.time if woken else self._next_time())
            moment = clock.reached()
            for descriptor in ready:
                on_ready = self._watched.get(descriptor)
                if on_ready is not None:  # another one's callback may just have unwatched it
                    on_ready(clock.time)
            while self.running:
                if woken:
                    woken.popleft().call(clock.time)
                    continue
                when = self._next_time()
                if when is None or when > moment:
                    break
                _, _, callback, argument = heappop(heap)
                clock.time = now = max(when, clock.time)
                if callback is None:
                    argument.call(now)
                else:
                    callback(now if argument is NOW else argument)

    def _say_who_waits(self) -> None:
        waiting = [task for task in self._tasks.values() if not task.service]
        if waiting:
            lines = (f"  task {task.name!r} waits for {task.waits_for}" for task in waiting)
            raise DeadlockError("\n".join([f"at {self.now()} ns nothing is left that could happen", *lines]))

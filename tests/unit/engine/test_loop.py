"""The loop: ready callbacks run before due timers, timers in the order of their times, on any clock."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.tracebacks import program_line
from testbed.engine.waitables import Event


class VirtualWaiter:
    """Waiter on a virtual clock: descriptors become ready at given times, and waiting advances the clock."""

    def __init__(self, *ready: tuple[int, int]) -> None:
        self.time = 0
        self.ready = sorted(ready)
        self.watched: list[int] = []
        self.waited: list[int | None] = []

    def now(self) -> int:
        return self.time

    def wait(self, deadline: int | None) -> Sequence[int]:
        self.waited.append(deadline)
        if self.ready and (deadline is None or self.ready[0][0] <= deadline):
            self.time = max(self.time, self.ready[0][0])
            descriptors = [descriptor for time, descriptor in self.ready if time <= self.time]
            self.ready = [entry for entry in self.ready if entry[0] > self.time]
            return [descriptor for descriptor in descriptors if descriptor in self.watched]
        assert deadline is not None, "waits without a deadline"
        self.time = max(self.time, deadline)
        return []

    def watch(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.watched.remove(descriptor)


def test_timers_expire_by_time_and_equal_times_in_the_order_of_setting() -> None:
    loop, called = Loop(VirtualWaiter()), list[tuple[str, int]]()
    for name, time in (("late", 30), ("first of two", 20), ("second of two", 20), ("early", 10)):
        loop.at(time, lambda now, name=name: called.append((name, now)))  # type: ignore[misc]
    loop.at(30, lambda _: loop.stop())
    loop.run()
    assert called == [("early", 10), ("first of two", 20), ("second of two", 20), ("late", 30)]


def test_a_timer_that_is_set_again_is_called_once_at_its_last_time() -> None:
    loop, called = Loop(VirtualWaiter()), list[int]()
    timer = loop.timer(called.append)
    for time in (50, 10, 40, 10, 20):
        timer.set(time)
    loop.at(60, lambda _: loop.stop())
    loop.run()
    assert called == [20]
    assert timer.when is None


def test_a_cancelled_timer_is_not_called_and_not_waited_for() -> None:
    waiter = VirtualWaiter()
    loop = Loop(waiter)
    timer = loop.timer(lambda _: loop.stop())
    timer.set(10)
    timer.set(None)
    loop.at(30, lambda _: loop.stop())
    loop.run()
    assert waiter.waited == [30]


def test_a_timer_can_be_set_again_by_its_own_callback() -> None:
    loop, called = Loop(VirtualWaiter()), list[int]()

    def tick(now: int) -> None:
        called.append(now)
        if now < 50:
            timer.set(now + 10)
        else:
            loop.stop()

    timer = loop.timer(tick)
    timer.set(10)
    loop.run()
    assert called == [10, 20, 30, 40, 50]


def test_a_timer_for_a_time_that_has_passed_is_called_in_the_same_turn() -> None:
    loop, called = Loop(VirtualWaiter()), list[int]()

    def on_timer(now: int) -> None:
        called.append(now)
        loop.at(now - 5, called.append)

    loop.at(10, on_timer)
    loop.turn()
    assert called == [10, 10]


def test_ready_descriptors_are_handled_before_due_timers() -> None:
    waiter = VirtualWaiter((10, 7))
    loop, called = Loop(waiter), list[str]()
    loop.at(10, lambda _: called.append("timer"))
    loop.watch(7, lambda _: called.append("descriptor"))
    loop.turn()
    assert called == ["descriptor", "timer"]


def test_a_descriptor_that_another_callback_has_unwatched_is_not_called() -> None:
    waiter = VirtualWaiter((10, 7), (10, 8))
    loop, called = Loop(waiter), list[int]()

    def first(_: int) -> None:
        called.append(7)
        loop.unwatch(8)

    loop.watch(7, first)
    loop.watch(8, lambda _: called.append(8))
    loop.turn()
    assert called == [7]
    assert waiter.watched == [7]


def test_no_wait_exceeds_the_earliest_timer() -> None:
    waiter = VirtualWaiter((5, 7))
    loop = Loop(waiter)
    loop.watch(7, lambda now: loop.at(now + 1, lambda _: loop.stop()))
    loop.at(100, lambda _: loop.stop())
    loop.run()
    assert waiter.waited == [100, 6]


@given(
    st.lists(
        st.tuples(st.sampled_from(["callback", "timer a", "timer b"]), st.none() | st.integers(0, 12)), max_size=30
    )
)
@example([("timer a", 5), ("callback", 5), ("timer a", 3), ("timer a", 5)])
def test_any_timers_expire_by_time_and_in_the_order_of_setting(
    settings: list[tuple[str, int | None]],
) -> None:
    """Test the virtual clock, which has its own path in the loop, and a waiting clock."""
    expected: dict[object, tuple[int, int, str]] = {}
    for n, (action, time) in enumerate(settings):
        entry = action if action.startswith("timer") else n
        if time is None:
            expected.pop(entry, None)
        elif entry not in expected or expected[entry][0] != time:
            expected[entry] = (time, n, action)
    in_order = [(action, time) for time, _, action in sorted(expected.values())]
    for waiter in (VirtualClock(), VirtualWaiter()):
        loop, called = Loop(waiter), list[tuple[str, int]]()
        timers = {
            name: loop.timer(lambda now, name=name, called=called: called.append((name, now)))  # type: ignore[misc]
            for name in ("timer a", "timer b")
        }

        for action, time in settings:
            if action in timers:
                timers[action].set(time)
            elif time is not None:
                loop.at(time, lambda now, called=called: called.append(("callback", now)))  # type: ignore[misc]
        loop.at(20, lambda _, loop=loop: loop.stop())  # type: ignore[misc]
        loop.run()
        assert called == in_order


def running_function(loop: Loop) -> str:
    """Return the name of the running task's function, from the stack that a signal handler sees, or an empty string."""
    return program_line(loop.task_frames(sys._getframe(1))).rpartition(" ")[2]


def test_the_stack_of_a_task_is_available_only_while_it_runs() -> None:
    loop = Loop(VirtualClock())
    stacks: list[tuple[str, str]] = []

    async def inner() -> None:
        stacks.append(("task", running_function(loop)))
        await loop.sleep(10)
        stacks.append(("task again", running_function(loop)))

    async def outer() -> None:
        await inner()

    async def failing() -> None:
        await loop.sleep(20)
        raise KeyError("of the task")

    async def wait_for_event() -> None:
        with pytest.raises(KeyError):
            await fails

    loop.spawn(outer(), "outer")
    fails = loop.spawn(failing(), "failing")
    loop.spawn(wait_for_event(), "waiting")
    for time in (0, 5, 15, 25):
        loop.at(time, lambda _: stacks.append(("callback", running_function(loop))))
    stacks.append(("before", running_function(loop)))
    loop.run()
    stacks.append(("after", running_function(loop)))
    assert stacks == [
        ("before", ""),
        ("task", "inner"),
        *[("callback", "")] * 2,
        ("task again", "inner"),
        *[("callback", "")] * 2,
        ("after", ""),
    ]


def test_an_error_that_ends_the_run_cancels_all_tasks() -> None:
    loop = Loop(VirtualClock())

    async def failing() -> None:
        raise KeyError("of the task")

    loop.spawn(failing(), "failing")
    with pytest.raises(KeyError):
        loop.run()
    assert running_function(loop) == ""
    assert not loop.in_task


def test_a_task_of_an_awaitable_other_than_a_coroutine_is_rejected() -> None:
    loop = Loop(VirtualClock())
    with pytest.raises(
        TypeError, match="task 'pause' needs a coroutine, got Event: call an 'async def' that awaits it"
    ):
        loop.spawn(Event("a turn"), "pause")  # type: ignore[arg-type]

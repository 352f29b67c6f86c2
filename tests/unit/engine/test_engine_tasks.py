"""Tasks: start, wait, end, error, cancellation, timeout, and the report of a deadlock."""

from __future__ import annotations

import re

import pytest

from protocols.core.completion import Completion
from testbed.engine.coroutines import until
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.queues import Queue
from testbed.engine.tasks import Task
from testbed.engine.waitables import CancelledError, DeadlockError, Event


@pytest.fixture
def loop() -> Loop:
    return Loop(VirtualClock())


def test_a_task_sleeps_exactly_as_long_as_requested_and_returns_its_result(loop: Loop) -> None:
    async def main() -> list[int]:
        times = [loop.now()]
        await loop.sleep(7)
        times.append(loop.now())
        await until(100)
        return [*times, loop.now()]

    assert loop.complete(main()) == [0, 7, 100]


def test_callbacks_and_wake_ups_at_the_same_time_run_in_the_order_of_scheduling(loop: Loop) -> None:
    log = list[str]()

    async def sleeper(name: str) -> None:
        await loop.sleep(10)
        log.append(name)

    loop.at(10, log.append, "callback set first")
    loop.spawn(sleeper("first task"), "first")
    loop.spawn(sleeper("second task"), "second")
    loop.at(5, lambda _: loop.at(10, log.append, "callback set last"))
    loop.run()
    assert log == ["callback set first", "first task", "second task", "callback set last"]


def test_woken_tasks_run_in_the_order_of_waking_before_the_next_callback_of_the_same_time(loop: Loop) -> None:
    log = list[str]()
    event = Event("go")

    async def waits(name: str) -> None:
        await event
        log.append(name)

    for name in ("a", "b"):
        loop.spawn(waits(name), name)
    loop.at(10, lambda _: (event.set(), log.append("set")))
    loop.at(10, log.append, "next")
    loop.run()
    assert log == ["set", "a", "b", "next"]


def test_sleeping_for_zero_time_runs_all_other_due_tasks_first(loop: Loop) -> None:
    log = list[str]()

    async def yields() -> None:
        log.append("before")
        await loop.sleep(0)
        log.append("after")

    loop.at(0, log.append, "due")
    loop.spawn(yields(), "yields")
    loop.run()
    assert log == ["before", "due", "after"]
    assert loop.now() == 0


def test_a_completion_of_a_protocol_can_be_awaited(loop: Loop) -> None:
    received: Completion[bytes] = Completion("a message")
    failed: Completion[bytes] = Completion("another message")

    async def main() -> tuple[bytes, int]:
        result = await received
        time = loop.now()
        with pytest.raises(ValueError, match="truncated"):
            await failed
        return result, time

    loop.at(30, received.complete, b"hello")
    loop.at(40, failed.fail, ValueError("truncated"))
    assert loop.complete(main()) == (b"hello", 30)


def test_a_completed_awaitable_that_still_yields_does_not_block_its_task(loop: Loop) -> None:
    class Eager(Completion[int]):
        def __await__(self):  # type: ignore[no-untyped-def]
            yield self
            return self.result()

    eager = Eager()
    eager.complete(4)

    async def main() -> int:
        return await eager

    assert loop.complete(main()) == 4


def test_a_tasks_result_or_error_reaches_all_awaiting_tasks(loop: Loop) -> None:
    async def returns_later() -> int:
        await loop.sleep(5)
        return 3

    async def breaks() -> int:
        await loop.sleep(5)
        raise LookupError("missing")

    async def adds(task: Task[int]) -> int:
        return 1 + await task

    async def main() -> int:
        source, broken = loop.spawn(returns_later(), "source"), loop.spawn(breaks(), "broken")
        adder = loop.spawn(adds(source), "adder")
        with pytest.raises(LookupError):
            await broken
        return await source + await adder

    assert loop.complete(main()) == 7


def test_an_unawaited_error_ends_the_run_with_the_tasks_name_and_the_location(loop: Loop) -> None:
    async def fails() -> None:
        await loop.sleep(12)
        raise ValueError("bad frame")

    task = loop.spawn(fails(), "firmware of n3")
    loop.at(20, lambda _: loop.stop())
    with pytest.raises(ValueError, match="bad frame") as caught:
        loop.run()
    assert caught.value.__notes__ == ["in task 'firmware of n3' at 12 ns"]
    assert "fails" in [entry.name for entry in caught.traceback]
    assert task.done
    loop.run()  # the loop can continue
    assert loop.now() == 20


def test_an_error_is_raised_even_if_an_earlier_wait_for_the_task_timed_out(loop: Loop) -> None:
    async def fails() -> None:
        await loop.sleep(50)
        raise ValueError("late")

    async def impatient(task: Task[None]) -> None:
        with pytest.raises(TimeoutError):
            await loop.timeout(10, task)

    loop.spawn(impatient(loop.spawn(fails(), "fails")), "impatient")
    with pytest.raises(ValueError, match="late"):
        loop.run()


def test_the_result_of_a_running_task_is_an_error(loop: Loop) -> None:
    async def sleeps() -> None:
        await loop.sleep(1)

    task = loop.spawn(sleeps(), "sleeps")
    with pytest.raises(RuntimeError, match="'sleeps' has not ended"):
        task.result()
    loop.run()
    task.result()


# Cancellation


def test_a_cancelled_task_ends_at_its_wait_runs_its_finally_and_drops_its_timer(loop: Loop) -> None:
    log = list[str]()

    async def sleeps() -> None:
        try:
            await loop.sleep(1_000_000)
        finally:
            log.append(f"finally at {loop.now()}")

    task = loop.spawn(sleeps(), "sleeps")
    loop.at(10, lambda _: task.cancel())
    loop.run()
    assert log == ["finally at 10"]
    assert task.cancelled
    assert loop.now() == 10
    with pytest.raises(CancelledError, match="'sleeps' was cancelled"):
        task.result()


def test_a_task_cancelled_before_its_start_never_starts(loop: Loop) -> None:
    log = list[str]()

    async def log_start() -> None:
        log.append("started")

    task = loop.spawn(log_start(), "unstarted")
    task.cancel()
    task.cancel()
    loop.run()
    assert task.cancelled
    assert log == []


def test_a_task_that_cancels_itself_ends_at_its_next_wait(loop: Loop) -> None:
    log = list[str]()

    async def ends() -> None:
        tasks[0].cancel()
        log.append("before the wait")
        await loop.sleep(1)
        log.append("after the wait")

    tasks = [loop.spawn(ends(), "ends")]
    loop.run()
    assert log == ["before the wait"]
    assert tasks[0].cancelled


def test_items_offered_before_the_cancellation_are_delivered_first(loop: Loop) -> None:
    queue: Queue[str] = Queue("frames")
    items = list[str]()

    async def receives() -> None:
        while True:
            items.append(await queue.get())

    task = loop.spawn(receives(), "takes")
    loop.at(10, lambda _: (queue.offer("first"), task.cancel(), queue.offer("second")))
    loop.run()
    assert task.cancelled
    assert items == ["first", "second"]  # the second item was queued, so that the task did not wait for it


def test_a_task_that_ends_without_waiting_again_was_not_cancelled(loop: Loop) -> None:
    event = Event("done")

    async def waits() -> str:
        await event
        return "result"

    task = loop.spawn(waits(), "waits")
    loop.at(10, lambda _: (event.set(), task.cancel()))
    loop.run()
    assert task.result() == "result"
    assert not task.cancelled


def test_a_task_may_catch_its_cancellation_and_can_be_cancelled_again(loop: Loop) -> None:
    caught_at = list[int]()

    async def catches_cancellation() -> None:
        try:
            await loop.sleep(100)
        except CancelledError:
            caught_at.append(loop.now())
        await loop.sleep(100)

    task = loop.spawn(catches_cancellation(), "task")
    loop.at(10, lambda _: task.cancel())
    loop.at(20, lambda _: task.cancel())
    loop.run()
    assert caught_at == [10]
    assert task.cancelled
    assert loop.now() == 20


def test_awaiting_a_cancelled_task_raises_and_does_not_cancel_the_awaiting_task(loop: Loop) -> None:
    async def sleeps() -> None:
        await loop.sleep(100)

    async def main() -> str:
        task = loop.spawn(sleeps(), "sleeps")
        loop.at(5, lambda _: task.cancel())
        try:
            await task
        except CancelledError as error:
            return str(error)
        return ""

    assert loop.complete(main()) == "task 'sleeps' was cancelled"


def test_the_completion_awaited_before_a_cancellation_does_not_wake_the_task(loop: Loop) -> None:
    first, second = Completion[int]("first"), Completion[int]("second")
    items = list[int]()

    async def awaits_another_after_cancellation() -> None:
        try:
            await first
        except CancelledError:
            items.append(await second)

    task = loop.spawn(awaits_another_after_cancellation(), "task")
    loop.at(10, lambda _: task.cancel())
    loop.at(20, first.complete, 1)
    loop.at(30, second.complete, 2)
    loop.run()
    assert items == [2]
    assert not task.cancelled


def test_close_cancels_all_tasks_in_order_of_their_creation(loop: Loop) -> None:
    log = list[str]()

    async def sleeps(name: str) -> None:
        try:
            await loop.sleep(100)
        finally:
            log.append(name)

    async def waits_for(task: Task[None]) -> None:
        try:
            await task
        finally:
            log.append("waiting task")

    first = loop.spawn(sleeps("first"), "first")
    loop.spawn(waits_for(first), "waits")
    loop.spawn(sleeps("second"), "second")
    loop.at(10, lambda _: loop.stop())
    loop.run()
    loop.spawn(sleeps("not started"), "not started")
    loop.close()
    assert log == ["first", "waiting task", "second"]
    loop.run()
    assert loop.now() == 10


# Timeouts


def test_a_result_within_the_timeout_is_returned_and_the_timer_is_removed(loop: Loop) -> None:
    async def quick() -> int:
        await loop.sleep(5)
        return 1

    async def main() -> int:
        return await loop.timeout(1_000, quick())

    assert loop.complete(main()) == 1
    loop.run()
    assert loop.now() == 5


def test_a_task_that_exceeds_its_timeout_is_interrupted_and_its_finally_runs(loop: Loop) -> None:
    log = list[str]()

    async def slow() -> None:
        try:
            await loop.sleep(50)
        finally:
            log.append(f"finally at {loop.now()}")

    async def main() -> int:
        with pytest.raises(TimeoutError, match="not done within 20 ns"):
            await loop.timeout(20, slow())
        return loop.now()

    assert loop.complete(main()) == 20
    assert log == ["finally at 20"]


@pytest.mark.parametrize(("outer", "inner", "expected"), [(30, 20, ["inner", "body"]), (20, 30, ["outer"])])
def test_the_expired_one_of_nested_timeouts_is_raised(loop: Loop, outer: int, inner: int, expected: list[str]) -> None:
    log = list[str]()

    async def body() -> None:
        try:
            await loop.timeout(inner, loop.sleep(100))
        except TimeoutError:
            log.append("inner")
        log.append("body")

    async def main() -> None:
        try:
            await loop.timeout(outer, body())
        except TimeoutError:
            log.append("outer")

    loop.complete(main())
    assert log == expected


def test_of_nested_timeouts_at_the_same_time_the_outer_one_is_raised(loop: Loop) -> None:
    log = list[str]()

    async def body() -> None:
        try:
            await loop.timeout(10, loop.sleep(100))
        except TimeoutError:
            log.append("inner")
        await loop.sleep(100)

    async def main() -> None:
        try:
            await loop.timeout(10, body())
        except TimeoutError:
            log.append("outer")

    loop.complete(main())
    assert log == ["outer"]
    assert loop.now() == 10


def test_an_item_offered_at_the_time_of_the_timeout_is_returned_or_stays_in_the_queue(loop: Loop) -> None:
    def outcome(item_first: bool) -> tuple[str, int]:
        queue: Queue[str] = Queue("frames")

        async def main() -> str:
            try:
                return await loop.timeout(10, queue.get())
            except TimeoutError:
                return "timeout"

        start = loop.now()
        if item_first:
            loop.at(start + 10, queue.offer, "item")
        else:
            loop.at(start + 9, lambda _: loop.at(start + 10, queue.offer, "item"))
        result = loop.complete(main())
        loop.run()
        return result, len(queue)

    assert outcome(item_first=True) == ("item", 0)
    assert outcome(item_first=False) == ("timeout", 1)


def test_a_timeout_that_expires_just_after_the_wake_up_does_not_interrupt_the_next_wait(loop: Loop) -> None:
    event = Event("done")
    loop.at(5, lambda _: event.set())

    async def main() -> int:
        async def within() -> None:
            await event
            task.interrupt(CancelledError("other wait"))  # as a timeout that expires while the task does not wait

        task = loop.current
        assert task is not None
        await loop.timeout(10, within())
        with pytest.raises(CancelledError, match="other wait"):
            await loop.sleep(100)
        await loop.sleep(100)  # the timeout of 10 ns belongs to the earlier wait
        return loop.now()

    assert loop.complete(main()) == 105


def test_cancelling_a_task_within_a_timeout_is_not_a_timeout(loop: Loop) -> None:
    async def main() -> None:
        await loop.timeout(50, loop.sleep(100))

    task = loop.spawn(main(), "main")
    loop.at(10, lambda _: task.cancel())
    loop.run()
    assert task.cancelled
    assert loop.now() == 10


# Deadlocks


def test_a_deadlock_lists_the_tasks_and_their_pending_operations(loop: Loop) -> None:
    queue: Queue[int] = Queue("requests")
    full_queue: Queue[int] = Queue("replies", 1)
    full_queue.offer(1)

    async def main() -> None:
        await Event("link up")

    async def fills() -> None:
        await full_queue.put(2)

    async def receives() -> None:
        await Completion[int]("receive from n2")

    async def serves() -> None:
        await queue.get()

    server = loop.spawn(serves(), "server")
    loop.spawn(fills(), "filler")
    loop.spawn(receives(), "receiver")

    async def joins() -> None:
        await server

    loop.spawn(joins(), "joiner")
    loop.spawn(serves(), "a service", service=True)
    loop.at(70, lambda _: None)
    with pytest.raises(DeadlockError) as caught:
        loop.complete(main())
    assert re.sub(rf"{re.escape(__file__)}:\d+", "LINE", str(caught.value)).splitlines() == [
        "at 70 ns no event is pending",
        "  task 'server' waits for an item of queue 'requests', at LINE in serves",
        "  task 'filler' waits for room in queue 'replies', at LINE in fills",
        "  task 'receiver' waits for receive from n2, at LINE in receives",
        "  task 'joiner' waits for the end of task 'server', at LINE in joins; that task waits for an item of queue "
        "'requests', at LINE in serves",
        "  task 'main' waits for event 'link up', at LINE in main",
    ]
    loop.close()


def test_waiting_services_are_not_a_deadlock(loop: Loop) -> None:
    queue: Queue[int] = Queue("requests")
    served = list[int]()

    async def serves() -> None:
        while True:
            served.append(await queue.get())

    loop.spawn(serves(), "server", service=True)
    loop.at(3, queue.offer, 8)
    loop.run()
    assert served == [8]
    loop.close()


def test_a_loop_cannot_be_run_or_closed_from_within(loop: Loop) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="is running already"):
            loop.run()
        with pytest.raises(RuntimeError, match="stop it"):
            loop.close()

    loop.complete(main())


def test_tasks_that_wake_each_other_a_hundred_thousand_times_do_not_grow_the_stack(loop: Loop) -> None:
    local: Queue[int] = Queue("requests")
    remote: Queue[int] = Queue("replies")

    async def answers() -> None:
        while True:
            await remote.put(await local.get() + 1)

    async def main() -> int:
        number = 0
        while number < 100_000:
            await local.put(number)
            number = await remote.get()
        return number

    loop.spawn(answers(), "answers", service=True)
    assert loop.complete(main()) == 100_000
    loop.close()

"""Tasks: start, wait, end, failure, interruption, and the report of a deadlock."""

from __future__ import annotations

import re

import pytest

from protocols.core.completion import Completion
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.queues import Queue
from testbed.engine.tasks import Task
from testbed.engine.waitables import CancelledError, DeadlockError, Event


@pytest.fixture
def loop() -> Loop:
    return Loop(VirtualClock())


def test_a_task_sleeps_for_exactly_as_long_as_it_says_and_gives_its_result(loop: Loop) -> None:
    async def main() -> list[int]:
        times = [loop.now()]
        await loop.sleep(7)
        times.append(loop.now())
        await loop.sleep_until(100)
        return [*times, loop.now()]

    assert loop.complete(main()) == [0, 7, 100]


def test_what_happens_at_one_time_happens_in_the_order_in_which_it_was_set_whatever_it_is(loop: Loop) -> None:
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


def test_woken_tasks_go_on_in_the_order_of_waking_before_the_next_callback_of_the_same_time(loop: Loop) -> None:
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


def test_sleeping_for_no_time_lets_everything_else_that_is_due_go_on_first(loop: Loop) -> None:
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


def test_a_completion_that_is_no_part_of_the_engine_is_awaited_like_its_own(loop: Loop) -> None:
    received: Completion[bytes] = Completion("a message")
    failed: Completion[bytes] = Completion("another message")

    async def main() -> tuple[bytes, int]:
        found = await received
        at = loop.now()
        with pytest.raises(ValueError, match="truncated"):
            await failed
        return found, at

    loop.at(30, received.complete, b"hello")
    loop.at(40, failed.fail, ValueError("truncated"))
    assert loop.complete(main()) == (b"hello", 30)


def test_something_that_is_done_but_yields_nevertheless_does_not_hold_its_task_up(loop: Loop) -> None:
    class Eager(Completion[int]):
        def __await__(self):  # type: ignore[no-untyped-def]
            yield self
            return self.result()

    done = Eager()
    done.complete(4)

    async def main() -> int:
        return await done

    assert loop.complete(main()) == 4


def test_a_result_and_an_error_of_a_task_go_to_all_who_await_it(loop: Loop) -> None:
    async def returns_later() -> int:
        await loop.sleep(5)
        return 3

    async def breaks() -> int:
        await loop.sleep(5)
        raise LookupError("nothing there")

    async def adds(task: Task[int]) -> int:
        return 1 + await task

    async def main() -> int:
        given, broken = loop.spawn(returns_later(), "gives"), loop.spawn(breaks(), "breaks")
        other = loop.spawn(adds(given), "adds")
        with pytest.raises(LookupError):
            await broken
        return await given + await other

    assert loop.complete(main()) == 7


def test_an_error_that_nobody_awaits_ends_the_run_with_the_name_of_the_task_and_where_it_was_raised(loop: Loop) -> None:
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
    loop.run()  # the others can go on
    assert loop.now() == 20


def test_an_error_is_not_swallowed_because_somebody_once_awaited_the_task_and_gave_up(loop: Loop) -> None:
    async def fails() -> None:
        await loop.sleep(50)
        raise ValueError("late")

    async def impatient(task: Task[None]) -> None:
        with pytest.raises(TimeoutError):
            await loop.timeout(10, task)

    loop.spawn(impatient(loop.spawn(fails(), "fails")), "impatient")
    with pytest.raises(ValueError, match="late"):
        loop.run()


def test_the_result_of_a_task_that_has_not_ended_cannot_be_had(loop: Loop) -> None:
    async def sleeps() -> None:
        await loop.sleep(1)

    task = loop.spawn(sleeps(), "sleeps")
    with pytest.raises(RuntimeError, match="'sleeps' has not ended"):
        task.result()
    loop.run()
    task.result()


# Cancelling


def test_a_cancelled_task_ends_where_it_waits_its_finally_runs_and_nobody_waits_for_its_sleep(loop: Loop) -> None:
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


def test_a_task_that_is_cancelled_before_it_has_begun_never_begins(loop: Loop) -> None:
    log = list[str]()

    async def speaks() -> None:
        log.append("something")

    task = loop.spawn(speaks(), "speaks")
    task.cancel()
    task.cancel()
    loop.run()
    assert task.cancelled
    assert log == []


def test_a_task_that_cancels_itself_ends_at_its_next_wait(loop: Loop) -> None:
    log = list[str]()

    async def ends() -> None:
        tasks[0].cancel()
        log.append("still here")
        await loop.sleep(1)
        log.append("not here")

    tasks = [loop.spawn(ends(), "ends")]
    loop.run()
    assert log == ["still here"]
    assert tasks[0].cancelled


def test_what_was_done_before_the_cancellation_is_delivered_first(loop: Loop) -> None:
    queue: Queue[str] = Queue("frames")
    got = list[str]()

    async def receives() -> None:
        while True:
            got.append(await queue.get())

    task = loop.spawn(receives(), "takes")
    loop.at(10, lambda _: (queue.offer("first"), task.cancel(), queue.offer("second")))
    loop.run()
    assert task.cancelled
    assert got == ["first", "second"]  # the second was there: it did not have to wait for it


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


def test_a_task_may_refuse_to_be_cancelled_and_can_be_cancelled_again(loop: Loop) -> None:
    refused = list[int]()

    async def stubborn() -> None:
        try:
            await loop.sleep(100)
        except CancelledError:
            refused.append(loop.now())
        await loop.sleep(100)

    task = loop.spawn(stubborn(), "stubborn")
    loop.at(10, lambda _: task.cancel())
    loop.at(20, lambda _: task.cancel())
    loop.run()
    assert refused == [10]
    assert task.cancelled
    assert loop.now() == 20


def test_who_awaits_a_task_that_is_cancelled_hears_of_it_and_is_not_cancelled_itself(loop: Loop) -> None:
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


def test_what_a_cancelled_task_had_waited_for_wakes_it_no_more(loop: Loop) -> None:
    first, second = Completion[int]("first"), Completion[int]("second")
    got = list[int]()

    async def changes_its_mind() -> None:
        try:
            await first
        except CancelledError:
            got.append(await second)

    task = loop.spawn(changes_its_mind(), "changes its mind")
    loop.at(10, lambda _: task.cancel())
    loop.at(20, first.complete, 1)
    loop.at(30, second.complete, 2)
    loop.run()
    assert got == [2]
    assert not task.cancelled


def test_close_ends_all_tasks_in_their_order_begun_or_not(loop: Loop) -> None:
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
            log.append("who waited for it")

    first = loop.spawn(sleeps("first"), "first")
    loop.spawn(waits_for(first), "waits")
    loop.spawn(sleeps("second"), "second")
    loop.at(10, lambda _: loop.stop())
    loop.run()
    loop.spawn(sleeps("not begun"), "not begun")
    loop.close()
    assert log == ["first", "who waited for it", "second"]
    loop.run()
    assert loop.now() == 10


# Time-outs


def test_what_is_done_in_time_is_given_and_the_time_out_is_forgotten(loop: Loop) -> None:
    async def quick() -> int:
        await loop.sleep(5)
        return 1

    async def main() -> int:
        return await loop.timeout(1_000, quick())

    assert loop.complete(main()) == 1
    loop.run()
    assert loop.now() == 5


def test_what_takes_longer_is_interrupted_and_its_finally_runs(loop: Loop) -> None:
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


@pytest.mark.parametrize(("outer", "inner", "caught"), [(30, 20, ["inner", "body"]), (20, 30, ["outer"])])
def test_of_nested_time_outs_the_one_that_has_passed_is_raised(
    loop: Loop, outer: int, inner: int, caught: list[str]
) -> None:
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
    assert log == caught


def test_of_nested_time_outs_at_the_same_time_the_outer_one_is_raised_as_it_was_set_first(loop: Loop) -> None:
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


def test_an_item_that_comes_at_the_very_time_of_the_time_out_is_either_given_or_stays_in_the_queue(loop: Loop) -> None:
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
        reported = loop.complete(main())
        loop.run()
        return reported, len(queue)

    assert outcome(item_first=True) == ("item", 0)
    assert outcome(item_first=False) == ("timeout", 1)


def test_a_time_out_that_passes_when_the_task_has_just_been_woken_does_not_reach_what_it_does_next(loop: Loop) -> None:
    event = Event("done")
    loop.at(5, lambda _: event.set())

    async def main() -> int:
        async def within() -> None:
            await event
            task.interrupt(CancelledError("another's"))  # as a time-out that passes just now: it waits nowhere

        task = loop.current
        assert task is not None
        await loop.timeout(10, within())
        with pytest.raises(CancelledError, match="another's"):
            await loop.sleep(100)
        await loop.sleep(100)  # 10 ns have passed by then, but they were the time-out's of something else
        return loop.now()

    assert loop.complete(main()) == 105


def test_cancelling_a_task_within_a_time_out_is_no_time_out(loop: Loop) -> None:
    async def main() -> None:
        await loop.timeout(50, loop.sleep(100))

    task = loop.spawn(main(), "main")
    loop.at(10, lambda _: task.cancel())
    loop.run()
    assert task.cancelled
    assert loop.now() == 10


# Waiting for ever


def test_when_nothing_is_left_to_happen_who_waits_for_what_is_said(loop: Loop) -> None:
    queue: Queue[int] = Queue("requests")
    full: Queue[int] = Queue("replies", 1)
    full.offer(1)

    async def main() -> None:
        await Event("link up")

    async def fills() -> None:
        await full.put(2)

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
    assert re.sub(rf"{re.escape(__file__)}:\d+", "HERE", str(caught.value)).splitlines() == [
        "at 70 ns nothing is left that could happen",
        "  task 'server' waits for an item of queue 'requests', at HERE in serves",
        "  task 'filler' waits for room in queue 'replies', at HERE in fills",
        "  task 'receiver' waits for receive from n2, at HERE in receives",
        "  task 'joiner' waits for the end of task 'server', at HERE in joins; that one waits for an item of queue "
        "'requests', at HERE in serves",
        "  task 'main' waits for event 'link up', at HERE in main",
    ]
    loop.close()


def test_services_that_wait_are_no_deadlock(loop: Loop) -> None:
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
    local: Queue[int] = Queue("here")
    remote: Queue[int] = Queue("there")

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

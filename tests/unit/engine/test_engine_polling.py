"""Tasks that poll: awaiting a completed operation runs other tasks first, and advances a virtual clock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from protocols.core.completion import Completion
from testbed.engine.loop import POLL_TIME, Loop, VirtualClock
from testbed.engine.waitables import DeadlockError, Event
from testbed.kernel.waiter import Waiter

TURN: Completion[None] = Completion("a turn")
TURN.complete(None)


class Yield:
    def __await__(self):  # type: ignore[no-untyped-def]
        yield TURN


@pytest.fixture
def loop() -> Loop:
    return Loop(VirtualClock())


async def poll(loop: Loop, event: Event) -> tuple[int, int]:
    """Poll for an event; return the time and the number of polls."""
    polls = 0
    while not event.done:
        polls += 1
        await Yield()
    return loop.now(), polls


def test_a_poller_sees_an_event_when_it_happens(loop: Loop) -> None:
    event = Event("arrival")
    loop.at(10, lambda _: None)
    loop.at(1_000_000_000, lambda _: event.set())
    end, polls = loop.complete(poll(loop, event))
    assert end == 1_000_000_000
    assert polls < 10_000, "polls that cannot find anything take longer"


@pytest.mark.parametrize("polls", [3, 100])
@pytest.mark.parametrize("pending", ["nothing", "a distant event", "the end of the run"])
def test_each_poll_takes_the_poll_time_whatever_is_pending(loop: Loop, polls: int, pending: str) -> None:
    if pending == "a distant event":
        loop.at(1_000_000_000, lambda _: None)
    elif pending == "the end of the run":
        loop.stop_at(1_000_000_000)

    async def poll_repeatedly() -> int:
        for _ in range(polls):
            await Yield()
        return loop.now()

    assert loop.complete(poll_repeatedly()) == polls * POLL_TIME


@pytest.mark.parametrize("target", [1_000_000, 50_000_000, 60_000_000_000])
def test_a_poller_that_waits_for_a_time_returns_soon_after_it(loop: Loop, target: int) -> None:
    polls = 0

    async def poll_clock() -> int:
        nonlocal polls
        while loop.now() < target:
            polls += 1
            await Yield()
        return loop.now()

    loop.stop_at(2 * target)
    assert target <= loop.complete(poll_clock()) <= target * 1.03
    assert polls < 100_000


def test_a_poller_sees_an_unannounced_frame_within_one_poll(loop: Loop) -> None:
    """Another task polls until a time and then acts, without an entry in the heap."""
    event = Event("arrival")
    trigger_time = 0

    async def other_task() -> None:
        nonlocal trigger_time
        while loop.now() < 10_000_000:
            await Yield()
        trigger_time = loop.now()
        loop.at(trigger_time + 50, lambda _: event.set())

    loop.spawn(other_task(), "other")
    seen_at, _ = loop.complete(poll(loop, event))
    assert trigger_time + 50 <= seen_at <= trigger_time + 50 + POLL_TIME


def test_any_number_of_pollers_let_time_advance(loop: Loop) -> None:
    events = [Event(str(number)) for number in range(50)]
    for number, event in enumerate(events):
        loop.at(1_000 * (number + 1), lambda _, event=event: event.set())  # type: ignore[misc]
    tasks = [loop.spawn(poll(loop, event), event.name) for event in events]
    loop.run()
    assert [task.result()[0] for task in tasks] == [1_000 * (number + 1) for number in range(50)]


def test_a_poller_sees_another_tasks_event_at_once(loop: Loop) -> None:
    event = Event("arrival")

    async def other_task() -> None:
        event.set()

    task = loop.spawn(poll(loop, event), "poller")
    loop.spawn(other_task(), "other")
    loop.at(1_000, lambda _: None)  # a distant event, for which the poller must not wait
    loop.run()
    assert task.result() == (POLL_TIME, 1)


def test_pollers_that_wait_for_each_other_progress_with_each_poll(loop: Loop) -> None:
    """Each poller runs before the one that it waits for."""
    events = [Event(name) for name in ("first", "second", "third", "fourth")]

    async def poll_then_set(looked_for: Event, to_set: Event) -> int:
        await poll(loop, looked_for)
        to_set.set()
        return loop.now()

    tasks = [
        loop.spawn(poll_then_set(events[2], events[3]), "last"),
        loop.spawn(poll_then_set(events[1], events[2]), "then"),
        loop.spawn(poll_then_set(events[0], events[1]), "next"),
    ]
    loop.at(5, lambda _: None)
    loop.at(10, lambda _: None)
    loop.at(10, lambda _: events[0].set())
    loop.at(1_000, lambda _: None)
    loop.run()
    assert [task.result() for task in tasks] == [3 * POLL_TIME, 2 * POLL_TIME, POLL_TIME]


@pytest.mark.parametrize("steps", [0, 1, 5, 100])
def test_pollers_of_each_other_progress_without_other_events(loop: Loop, steps: int) -> None:
    event = Event("arrival")

    async def other_task() -> None:
        for _ in range(steps):
            await Yield()
        event.set()

    loop.spawn(other_task(), "other")
    assert loop.complete(poll(loop, event))[0] == steps * POLL_TIME


def test_a_deadlock_names_the_pollers(loop: Loop) -> None:
    loop.spawn(poll(loop, Event("never")), "poller")
    loop.spawn(poll(loop, Event("never")), "another")
    loop.at(1_000, lambda _: None)
    with pytest.raises(DeadlockError, match=r"at \d+ ns .*\s+task 'poller' polls, at .*\s+task 'another' polls"):
        loop.run()


def test_a_poller_continues_in_a_later_run(loop: Loop) -> None:
    event = Event("late")
    task = loop.spawn(poll(loop, event), "poller")
    with pytest.raises(DeadlockError):
        loop.run()
    set_time = loop.now() + 500
    loop.at(set_time, lambda _: event.set())
    loop.run()
    assert set_time <= task.result()[0] <= set_time + POLL_TIME


@pytest.fixture
def wall_clock_loop() -> Iterator[Loop]:
    with contextlib.closing(Waiter()) as waiter:
        yield Loop(waiter)


@pytest.mark.parametrize("clock", ["loop", "wall_clock_loop"])
def test_a_poller_is_interrupted_at_its_deadline(clock: str, request: pytest.FixtureRequest) -> None:
    loop: Loop = request.getfixturevalue(clock)

    async def main() -> int:
        start = loop.now()
        with pytest.raises(TimeoutError):
            await loop.timeout(1_000_000, poll(loop, Event("never")))
        return loop.now() - start

    assert loop.complete(main()) >= 1_000_000


def test_a_poller_on_the_wall_clock_does_not_starve_descriptors(wall_clock_loop: Loop) -> None:
    loop = wall_clock_loop
    reader, writer = os.pipe()
    event = Event("readable")

    def read(_now: int) -> None:
        os.read(reader, 1)
        event.set()

    loop.watch(reader, read)
    loop.at(time.monotonic_ns() + 1_000_000, lambda _: os.write(writer, b"x"))
    loop.complete(poll(loop, event))
    loop.unwatch(reader)
    for end in (reader, writer):
        os.close(end)

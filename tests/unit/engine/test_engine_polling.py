"""Tasks that poll: each await of something done lets others go first, and on a virtual clock lets time go on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from protocols.core.completion import Completion
from testbed.engine.awaiting import DeadlockError, Event
from testbed.engine.clocks import VirtualClock
from testbed.engine.loop import Loop
from testbed.kernel.waiting import Waiter

TURN: Completion[None] = Completion("its turn")
TURN.complete(None)


class Turn:
    def __await__(self):  # type: ignore[no-untyped-def]
        yield TURN


@pytest.fixture
def loop() -> Loop:
    return Loop(VirtualClock())


async def poll(loop: Loop, event: Event) -> tuple[int, int]:
    """When it was there, and how often it had to be looked for."""
    looks = 0
    while not event.done:
        looks += 1
        await Turn()
    return loop.now(), looks


def test_a_poller_sees_what_happens_when_it_happens(loop: Loop) -> None:
    event = Event("there")
    loop.at(10, lambda _: None)
    loop.at(1_000_000_000, lambda _: event.set())
    when, looks = loop.complete(poll(loop, event))
    assert when == 1_000_000_000
    assert looks < 10, "time passes between the events without it"


def test_any_number_of_pollers_do_not_hold_up_time(loop: Loop) -> None:
    events = [Event(str(number)) for number in range(50)]
    for number, event in enumerate(events):
        loop.at(1_000 * (number + 1), lambda _, event=event: event.set())  # type: ignore[misc]
    tasks = [loop.spawn(poll(loop, event), event.name) for event in events]
    loop.run()
    assert [task.result()[0] for task in tasks] == [1_000 * (number + 1) for number in range(50)]


def test_a_poller_sees_at_once_what_another_task_does_behind_it(loop: Loop) -> None:
    event = Event("there")

    async def other() -> None:
        event.set()

    task = loop.spawn(poll(loop, event), "poller")
    loop.spawn(other(), "other")
    loop.at(1_000, lambda _: None)  # something far away, for which it must not wait
    loop.run()
    assert task.result()[0] == 0


def test_pollers_that_wait_for_each_other_all_see_it_at_once(loop: Loop) -> None:
    """Each was looked at before the one that it waits for."""
    events = [Event(name) for name in ("first", "second", "third", "fourth")]

    async def then(looked_for: Event, done: Event) -> int:
        await poll(loop, looked_for)
        done.set()
        return loop.now()

    tasks = [
        loop.spawn(then(events[2], events[3]), "last"),
        loop.spawn(then(events[1], events[2]), "then"),
        loop.spawn(then(events[0], events[1]), "next"),
    ]
    loop.at(5, lambda _: None)
    loop.at(10, lambda _: None)
    loop.at(10, lambda _: events[0].set())
    loop.at(1_000, lambda _: None)
    loop.run()
    assert [task.result() for task in tasks] == [10, 10, 10]


@pytest.mark.parametrize("steps", [0, 1, 5, 100])
def test_pollers_of_each_other_agree_though_nothing_else_happens(loop: Loop, steps: int) -> None:
    event = Event("there")

    async def other() -> None:
        for _ in range(steps):
            await Turn()
        event.set()

    loop.spawn(other(), "other")
    assert loop.complete(poll(loop, event))[0] == 0


def test_a_poller_for_what_never_comes_is_named(loop: Loop) -> None:
    loop.spawn(poll(loop, Event("never")), "poller")
    loop.spawn(poll(loop, Event("never")), "another")
    loop.at(1_000, lambda _: None)
    with pytest.raises(DeadlockError, match=r"at 1000 ns .*\s+task 'poller' waits for its turn\s+task 'another' waits"):
        loop.run()


def test_a_poller_goes_on_in_a_later_run(loop: Loop) -> None:
    event = Event("late")
    task = loop.spawn(poll(loop, event), "poller")
    with pytest.raises(DeadlockError):
        loop.run()
    loop.at(500, lambda _: event.set())
    loop.run()
    assert task.result()[0] == 500


@pytest.fixture
def wall() -> Iterator[Loop]:
    with contextlib.closing(Waiter()) as waiter:
        yield Loop(waiter)


@pytest.mark.parametrize("clock", ["loop", "wall"])
def test_a_poller_is_interrupted_when_its_time_is_over(clock: str, request: pytest.FixtureRequest) -> None:
    loop: Loop = request.getfixturevalue(clock)

    async def main() -> int:
        begun = loop.now()
        with pytest.raises(TimeoutError):
            await loop.timeout(1_000_000, poll(loop, Event("never")))
        return loop.now() - begun

    assert loop.complete(main()) >= 1_000_000


def test_a_poller_on_the_wall_clock_hides_no_descriptor(wall: Loop) -> None:
    loop = wall
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

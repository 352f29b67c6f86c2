"""Clocks: one loop and its tasks on a virtual clock, on one that waits, and on a slowed one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import pytest

from testbed.engine.loop import DilatedClock, Loop, VirtualClock, Waiter
from testbed.engine.queues import Queue


class Late:
    """Model of a wall clock: it starts at an arbitrary time, and every wait ends `late` ns late."""

    def __init__(self, start: int = 1_000_003, late: int = 7) -> None:
        self.time = start
        self.late = late
        self.ready: list[int] = []
        self.watched: list[int] = []
        self.polls = 0

    def now(self) -> int:
        return self.time

    def wait(self, deadline: int | None) -> Sequence[int]:
        if self.ready:
            return [descriptor for descriptor in self.ready if descriptor in self.watched]
        assert deadline is not None, "it would wait forever"
        if deadline <= self.time:
            self.polls += 1
        else:
            self.time = deadline + self.late
        return ()

    def watch(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.watched.remove(descriptor)


def program(waiter: Waiter) -> list[tuple[str, int]]:
    """Return what a small client and server record, with times since their start."""
    loop, log = Loop(waiter), list[tuple[str, int]]()
    start = loop.now()
    requests: Queue[str] = Queue("requests")

    async def server() -> None:
        while True:
            log.append((await requests.get(), loop.now() - start))

    async def client() -> None:
        for number in range(3):
            await loop.sleep(1_000)
            await requests.put(f"request {number}")
        await loop.sleep(1_000)

    loop.spawn(server(), "server", service=True)
    loop.complete(client(), "client")
    loop.close()
    return log


def test_a_program_on_the_virtual_clock_meets_its_times_exactly() -> None:
    assert program(VirtualClock()) == [("request 0", 1_000), ("request 1", 2_000), ("request 2", 3_000)]


def test_the_same_program_on_a_waiting_clock_is_late_by_its_waits() -> None:
    assert program(Late()) == [("request 0", 1_007), ("request 1", 2_014), ("request 2", 3_021)]


def test_on_a_dilated_clock_a_program_meets_its_times_exactly_however_late_the_machine_is() -> None:
    expected = [("request 0", 1_000), ("request 1", 2_000), ("request 2", 3_000)]
    for lateness in (0, 7, 250, 100_000, 2_000_000):
        inner = Late(late=lateness)
        assert program(DilatedClock(inner, 100, inner.time)) == expected


def test_a_dilated_clock_is_never_early() -> None:
    inner = Late(late=0)
    loop = Loop(DilatedClock(inner, 7, inner.time))
    start = inner.time
    times: list[tuple[int, int]] = []

    async def steps() -> None:
        for number in range(50):
            await loop.sleep(number)
            times.append((loop.now(), inner.time - start))

    loop.complete(steps(), "steps")
    assert [now for now, _ in times] == [number * (number + 1) // 2 for number in range(50)]
    assert all(passed == 7 * now for now, passed in times)


def test_processes_that_share_origin_and_factor_share_the_dilated_time() -> None:
    inner = Late()
    first = DilatedClock(inner, 50, origin=400)
    inner.time += 12_000
    assert DilatedClock(inner, 50, origin=400).reached() == first.reached() == (inner.time - 400) // 50


def test_external_events_are_ordered_among_those_due() -> None:
    inner = Late(late=0)
    start = inner.time
    clock = DilatedClock(inner, 10, start)
    loop = Loop(clock)
    log: list[tuple[str, int]] = []

    def arrived(now: int) -> None:
        inner.ready.clear()
        loop.at(max(now, clock.from_base_time(start + 61)), lambda time: log.append(("outside", time)))
        loop.at(now + 12, lambda _: loop.stop())

    loop.watch(5, arrived)
    for time in (3, 8, 20):
        loop.at(time, lambda now: log.append(("due", now)))
    inner.ready.append(5)
    inner.time += 121  # 12 of ours
    loop.run()
    assert log == [("due", 3), ("outside", 6), ("due", 8)]
    loop.unwatch(5)
    assert inner.watched == []


class Done:
    """Awaitable that is done already, which a program polls with."""

    done = True

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        callback(self)

    def __await__(self) -> Generator[Done, None, None]:
        yield self


def test_on_a_dilated_clock_polling_continues_until_an_external_event() -> None:
    inner = Late(late=0)
    loop = Loop(DilatedClock(inner, 10, inner.time))
    arrivals: list[int] = []

    async def poll() -> int:
        polls = 0
        while not arrivals:
            polls += 1
            if polls == 20_000:
                inner.ready.append(5)
            await Done()
        return polls

    def arrived(now: int) -> None:
        inner.ready.clear()
        arrivals.append(now)

    loop.watch(5, arrived)
    assert loop.complete(poll(), "poll") >= 20_000
    assert arrivals == [19_999_000]  # a look in a microsecond


@pytest.mark.parametrize("factor", [0, -3])
def test_a_clock_cannot_be_slowed_by_less_than_one(factor: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        DilatedClock(Late(), factor)


def test_the_virtual_clock_watches_no_descriptors() -> None:
    with pytest.raises(ValueError, match="descriptor 4"):
        Loop(VirtualClock()).watch(4, lambda _: None)


def test_the_virtual_clock_never_goes_back() -> None:
    clock = VirtualClock()
    loop, called = Loop(clock), list[int]()
    loop.at(20, called.append)
    loop.turn()
    loop.at(5, called.append)
    loop.turn()
    loop.turn()
    assert called == [20, 20]
    assert clock.time == 20


def test_a_callback_set_for_the_past_is_called_with_the_current_time() -> None:
    loop, called = Loop(VirtualClock()), list[int]()
    loop.at(20, lambda _: loop.at(3, called.append))
    loop.run()
    assert called == [20]


def test_tasks_that_wake_each_other_endlessly_hide_neither_descriptors_nor_timers() -> None:
    waiter = Late()
    loop = Loop(waiter)
    local, remote = Queue[int]("here"), Queue[int]("there")
    log = list[str]()

    async def plays(inbox: Queue[int], outbox: Queue[int]) -> None:
        while True:
            await outbox.put(await inbox.get())

    loop.spawn(plays(local, remote), "one")
    loop.spawn(plays(remote, local), "other")
    local.offer(0)
    loop.watch(3, lambda _: (log.append("descriptor"), waiter.ready.clear(), loop.stop()))
    loop.at(loop.now(), log.append, "timer")
    waiter.ready = []
    loop.turn()
    waiter.ready = [3]
    loop.run()
    assert log == ["timer", "descriptor"]
    assert waiter.polls > 0
    loop.close()


def test_every_poll_on_the_wall_clock_checks_descriptors_and_timers() -> None:
    waiter = Late()
    loop = Loop(waiter)
    arrived = list[str]()

    async def poll() -> int:
        polls = 0
        while len(arrived) < 2:
            polls += 1
            if polls == 5:
                loop.watch(3, lambda _: (arrived.append("descriptor"), waiter.ready.clear()))
                waiter.ready.append(3)
            if polls == 8:
                loop.at(loop.now(), arrived.append, "timer")
            await Done()
        return polls

    assert loop.complete(poll(), "poll") == 8
    assert arrived == ["descriptor", "timer"]
    loop.unwatch(3)

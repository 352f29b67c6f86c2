"""Clocks: a loop and its tasks on the virtual clock, on a wall clock, and on a dilated clock."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import pytest

from testbed.engine.loop import DilatedClock, Loop, VirtualClock, Waiter
from testbed.engine.queues import Queue


class LateClock:
    """Wall clock that starts at an arbitrary time, and whose waits end `late` ns late."""

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
        assert deadline is not None, "waits without a deadline"
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
    """Run a client and a server; return their requests with the times of arrival."""
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


def test_on_the_virtual_clock_a_program_meets_its_times_exactly() -> None:
    assert program(VirtualClock()) == [("request 0", 1_000), ("request 1", 2_000), ("request 2", 3_000)]


def test_on_a_wall_clock_a_program_is_late_by_its_waits() -> None:
    assert program(LateClock()) == [("request 0", 1_007), ("request 1", 2_014), ("request 2", 3_021)]


def test_on_a_dilated_clock_a_program_meets_its_times_exactly_on_a_late_machine() -> None:
    expected = [("request 0", 1_000), ("request 1", 2_000), ("request 2", 3_000)]
    for lateness in (0, 7, 250, 100_000, 2_000_000):
        wall_clock = LateClock(late=lateness)
        assert program(DilatedClock(wall_clock, 100, wall_clock.time)) == expected


def test_a_dilated_clock_is_never_early() -> None:
    wall_clock = LateClock(late=0)
    loop = Loop(DilatedClock(wall_clock, 7, wall_clock.time))
    start = wall_clock.time
    times: list[tuple[int, int]] = []

    async def steps() -> None:
        for number in range(50):
            await loop.sleep(number)
            times.append((loop.now(), wall_clock.time - start))

    loop.complete(steps(), "steps")
    assert [now for now, _ in times] == [number * (number + 1) // 2 for number in range(50)]
    assert all(passed == 7 * now for now, passed in times)


def test_processes_that_share_origin_and_factor_share_the_dilated_time() -> None:
    wall_clock = LateClock()
    first = DilatedClock(wall_clock, 50, origin=400)
    wall_clock.time += 12_000
    assert DilatedClock(wall_clock, 50, origin=400).reached() == first.reached() == (wall_clock.time - 400) // 50


def test_external_events_are_ordered_among_those_due() -> None:
    wall_clock = LateClock(late=0)
    start = wall_clock.time
    clock = DilatedClock(wall_clock, 10, start)
    loop = Loop(clock)
    log: list[tuple[str, int]] = []

    def arrived(now: int) -> None:
        wall_clock.ready.clear()
        loop.at(max(now, clock.from_base_time(start + 61)), lambda time: log.append(("outside", time)))
        loop.at(now + 12, lambda _: loop.stop())

    loop.watch(5, arrived)
    for time in (3, 8, 20):
        loop.at(time, lambda now: log.append(("due", now)))
    wall_clock.ready.append(5)
    wall_clock.time += 121  # 12 ns of dilated time
    loop.run()
    assert log == [("due", 3), ("outside", 6), ("due", 8)]
    loop.unwatch(5)
    assert wall_clock.watched == []


class CompletedAwaitable:
    """Completed awaitable with which a program polls."""

    done = True

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        callback(self)

    def __await__(self) -> Generator[CompletedAwaitable, None, None]:
        yield self


def test_on_a_dilated_clock_polling_continues_until_an_external_event() -> None:
    wall_clock = LateClock(late=0)
    loop = Loop(DilatedClock(wall_clock, 10, wall_clock.time))
    arrivals: list[int] = []

    async def poll() -> int:
        polls = 0
        while not arrivals:
            polls += 1
            if polls == 20_000:
                wall_clock.ready.append(5)
            await CompletedAwaitable()
        return polls

    def arrived(now: int) -> None:
        wall_clock.ready.clear()
        arrivals.append(now)

    loop.watch(5, arrived)
    assert loop.complete(poll(), "poll") >= 20_000
    assert arrivals == [19_999_000]  # a poll takes a microsecond


@pytest.mark.parametrize("factor", [0, -3])
def test_a_dilation_factor_below_one_is_rejected(factor: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        DilatedClock(LateClock(), factor)


def test_the_virtual_clock_watches_no_descriptors() -> None:
    with pytest.raises(ValueError, match="descriptor 4"):
        Loop(VirtualClock()).watch(4, lambda _: None)


def test_the_virtual_clock_never_runs_backwards() -> None:
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


def test_tasks_that_wake_each_other_endlessly_starve_neither_descriptors_nor_timers() -> None:
    waiter = LateClock()
    loop = Loop(waiter)
    local, remote = Queue[int]("local"), Queue[int]("remote")
    log = list[str]()

    async def pass_on(inbox: Queue[int], outbox: Queue[int]) -> None:
        while True:
            await outbox.put(await inbox.get())

    loop.spawn(pass_on(local, remote), "first")
    loop.spawn(pass_on(remote, local), "second")
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
    waiter = LateClock()
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
            await CompletedAwaitable()
        return polls

    assert loop.complete(poll(), "poll") == 8
    assert arrived == ["descriptor", "timer"]
    loop.unwatch(3)

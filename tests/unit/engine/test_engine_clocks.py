"""Clocks: the same loop and tasks on a virtual clock, on one that waits, and on one that is slowed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from testbed.engine.clocks import DilatedClock, VirtualClock, Waiter
from testbed.engine.loop import Loop
from testbed.engine.queues import Queue


class Late:
    """A wall clock as it is met: it begins somewhere, and every wait ends a little late."""

    def __init__(self, begun: int = 1_000_003, late: int = 7) -> None:
        self.time = begun
        self.late = late
        self.ready: list[int] = []
        self.watched: list[int] = []
        self.polls = 0

    def now(self) -> int:
        return self.time

    def wait(self, deadline: int | None) -> Sequence[int]:
        if self.ready:
            return [descriptor for descriptor in self.ready if descriptor in self.watched]
        assert deadline is not None, "it would wait for ever"
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
    """What a small program says, with times since it began."""
    loop, said = Loop(waiter), list[tuple[str, int]]()
    begun = loop.now()
    requests: Queue[str] = Queue("requests")

    async def server() -> None:
        while True:
            said.append((await requests.get(), loop.now() - begun))

    async def client() -> None:
        for number in range(3):
            await loop.sleep(1_000)
            await requests.put(f"request {number}")
        await loop.sleep(1_000)

    loop.spawn(server(), "server", service=True)
    loop.complete(client(), "client")
    loop.close()
    return said


def test_a_program_on_the_virtual_clock_meets_its_times_exactly() -> None:
    assert program(VirtualClock()) == [("request 0", 1_000), ("request 1", 2_000), ("request 2", 3_000)]


def test_the_same_program_on_a_clock_that_waits_is_late_by_what_the_waits_are() -> None:
    assert program(Late()) == [("request 0", 1_007), ("request 1", 2_014), ("request 2", 3_021)]


def test_on_a_dilated_clock_the_same_lateness_is_smaller_by_the_factor() -> None:
    assert program(DilatedClock(Late(), 100)) == [("request 0", 1_000), ("request 1", 2_000), ("request 2", 3_000)]
    slightly = program(DilatedClock(Late(late=250), 100))
    assert slightly == [("request 0", 1_002), ("request 1", 2_004), ("request 2", 3_006)]


def test_a_dilated_clock_is_never_early() -> None:
    inner = Late(begun=12_345, late=0)
    clock = DilatedClock(inner, 7, origin=11)
    for deadline in range(clock.now() + 1, clock.now() + 50):
        clock.wait(deadline)
        assert clock.now() == deadline
        assert inner.time == 11 + deadline * 7


def test_processes_that_share_origin_and_factor_share_the_dilated_time() -> None:
    inner = Late()
    first = DilatedClock(inner, 50, origin=400)
    inner.time += 12_000
    assert DilatedClock(inner, 50, origin=400).now() == first.now()


def test_a_dilated_clock_passes_descriptors_on_and_may_wait_without_a_deadline() -> None:
    inner = Late()
    clock = DilatedClock(inner, 10)
    clock.watch(5)
    inner.ready = [5, 6]
    assert list(clock.wait(None)) == [5]
    clock.unwatch(5)
    assert inner.watched == []


@pytest.mark.parametrize("factor", [0, -3])
def test_a_clock_cannot_be_slowed_by_less_than_one(factor: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        DilatedClock(Late(), factor)


def test_the_virtual_clock_watches_no_descriptors() -> None:
    with pytest.raises(ValueError, match="descriptor 4"):
        Loop(VirtualClock()).watch(4, lambda _: None)


def test_the_virtual_clock_turns_too_and_never_goes_back() -> None:
    clock = VirtualClock()
    loop, called = Loop(clock), list[int]()
    loop.at(20, called.append)
    loop.turn()
    loop.at(5, called.append)
    loop.turn()
    loop.turn()
    assert called == [20, 20]
    assert clock.time == 20


def test_a_callback_set_for_the_past_is_told_the_time_that_it_is() -> None:
    loop, called = Loop(VirtualClock()), list[int]()
    loop.at(20, lambda _: loop.at(3, called.append))
    loop.run()
    assert called == [20]


def test_tasks_that_wake_each_other_for_ever_hide_neither_descriptors_nor_timers() -> None:
    waiter = Late()
    loop = Loop(waiter)
    here, there = Queue[int]("here"), Queue[int]("there")
    said = list[str]()

    async def plays(mine: Queue[int], other: Queue[int]) -> None:
        while True:
            await other.put(await mine.get())

    loop.spawn(plays(here, there), "one")
    loop.spawn(plays(there, here), "other")
    here.offer(0)
    loop.watch(3, lambda _: (said.append("descriptor"), waiter.ready.clear(), loop.stop()))
    loop.at(loop.now(), said.append, "timer")
    waiter.ready = []
    loop.turn()
    waiter.ready = [3]
    loop.run()
    assert said == ["timer", "descriptor"]
    assert waiter.polls > 0
    loop.close()

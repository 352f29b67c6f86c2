"""Queues: first in, first out for items and waiting tasks; cancellation neither loses nor duplicates an item."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.queues import Queue
from testbed.engine.waitables import Event


def test_items_leave_in_the_order_of_arrival() -> None:
    loop, queue = Loop(VirtualClock()), Queue[int]("frames")

    async def main() -> list[int]:
        for item in range(5):
            await queue.put(item)
        return [await queue.get() for _ in range(5)]

    assert loop.complete(main()) == list(range(5))


def test_the_first_waiter_gets_the_first_item() -> None:
    loop, queue, received = Loop(VirtualClock()), Queue[str]("frames"), list[tuple[str, str]]()

    async def get_item(name: str) -> None:
        received.append((name, await queue.get()))

    for name in "abc":
        loop.spawn(get_item(name), name)
    for time, item in ((5, "first"), (6, "second"), (6, "third")):
        loop.at(time, queue.offer, item)
    loop.run()
    assert received == [("a", "first"), ("b", "second"), ("c", "third")]


def test_no_task_runs_between_a_putter_and_the_waiting_getter() -> None:
    loop, queue, received = Loop(VirtualClock()), Queue[str]("frames"), list[tuple[str, str]]()

    async def get_item(name: str) -> None:
        received.append((name, await queue.get()))

    async def put_item() -> None:
        await queue.put("first")
        await get_item("putter")

    loop.spawn(get_item("waiting getter"), "waiting getter")
    loop.spawn(put_item(), "putter")
    loop.at(10, queue.offer, "second")
    loop.run()
    assert received == [("waiting getter", "first"), ("putter", "second")]


def test_putters_to_a_full_queue_wait_in_order() -> None:
    loop, queue, accepted = Loop(VirtualClock()), Queue[str]("ring", 2), list[tuple[str, int]]()

    async def put_item(name: str) -> None:
        await queue.put(name)
        accepted.append((name, loop.now()))

    async def get_item() -> list[str]:
        items = []
        for _ in range(4):
            await loop.sleep(10)
            items.append(await queue.get())
        return items

    for name in "abcd":
        loop.spawn(put_item(name), name)
    assert loop.complete(get_item()) == list("abcd")
    assert accepted == [("a", 0), ("b", 0), ("c", 10), ("d", 20)]


def test_offers_to_a_full_queue_fail_and_an_empty_queue_raises() -> None:
    queue: Queue[int] = Queue("ring", 1)
    assert queue.offer(1)
    assert not queue.offer(2)
    assert queue.take() == 1
    with pytest.raises(IndexError):
        queue.take()


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_queue_of_capacity_0_is_rejected(capacity: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Queue[int]("ring", capacity)


def test_a_cleared_event_can_be_set_again() -> None:
    loop, event, wake_times = Loop(VirtualClock()), Event("space"), list[int]()

    async def await_twice() -> None:
        for _ in range(2):
            await event
            wake_times.append(loop.now())
            event.clear()

    loop.spawn(await_twice(), "waiter")
    for time in (10, 20):
        loop.at(time, lambda _: event.set())
    loop.run()
    assert wake_times == [10, 20]
    assert not event.done


@given(
    capacity=st.none() | st.integers(1, 3),
    putters=st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=5), max_size=4),
    getters=st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=5), max_size=4),
)
def test_cancellation_neither_loses_nor_duplicates_nor_reorders_items(
    capacity: int | None, putters: list[list[tuple[int, int]]], getters: list[list[tuple[int, int]]]
) -> None:
    """putters, getters: operations of each task, as a pause before and a timeout."""
    loop, queue = Loop(VirtualClock()), Queue[tuple[int, int]]("items", capacity)
    accepted, received = list[tuple[int, int]](), list[tuple[int, int]]()

    async def put_item(number: int, operations: list[tuple[int, int]]) -> None:
        for n, (pause, timeout) in enumerate(operations):
            await loop.sleep(pause)
            try:
                await loop.timeout(timeout, queue.put((number, n)))
            except TimeoutError:
                continue
            accepted.append((number, n))

    async def get_item(operations: list[tuple[int, int]]) -> None:
        for pause, timeout in operations:
            await loop.sleep(pause)
            try:
                received.append(await loop.timeout(timeout, queue.get()))
            except TimeoutError:
                continue

    for number, operations in enumerate(putters):
        loop.spawn(put_item(number, operations), f"putter {number}")
    for number, operations in enumerate(getters):
        loop.spawn(get_item(operations), f"getter {number}")
    loop.run()
    arrived = received + [queue.take() for _ in range(len(queue))]
    assert sorted(arrived) == sorted(accepted)
    assert len(set(arrived)) == len(arrived)
    for number in range(len(putters)):
        order = [n for putter, n in arrived if putter == number]
        assert order == sorted(order)

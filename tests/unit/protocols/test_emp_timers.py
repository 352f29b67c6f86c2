"""Parts of EMP's firmware: the timer table, and host memory's pages of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.memory import PAGE, HostMemory, Scatter, UnpinnedError
from protocols.core.timers import Timers

step = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 9), st.integers(0, 50)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("expire"), st.just(0), st.integers(0, 50)),
)


@given(st.lists(step, max_size=200))
def test_timers_agree_with_a_plain_table(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    table: dict[int, tuple[int, int]] = {}
    for order, (action, key, time) in enumerate(steps):
        if action == "set":
            timers.set(key, time)
            table[key] = (time, order)
        elif action == "cancel":
            timers.cancel(key)
            table.pop(key, None)
        else:
            due_timers = sorted(
                (due_time, set_order, first) for first, (due_time, set_order) in table.items() if due_time <= time
            )
            assert timers.expired(time) == [timer for _, _, timer in due_timers]
            for _, _, timer in due_timers:
                del table[timer]
        assert timers.deadline == min((due_time for due_time, _ in table.values()), default=None)
        assert dict(timers) == {first: due_time for first, (due_time, _) in table.items()}
        assert len(timers) == len(table)


def test_cancelled_timers_take_no_memory() -> None:
    timers: Timers[int] = Timers()
    for key in range(100_000):
        timers.set(key, 10**12 + key)
        if key >= 10:
            timers.cancel(key - 10)
    assert len(timers._heap) < 200
    assert timers.deadline == 10**12 + 99_990
    assert timers.expired(2 * 10**12) == list(range(99_990, 100_000))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 500), st.integers(0, 500))
def test_views_of_a_scattered_message_are_its_bytes(lengths: list[int], begin: int, end: int) -> None:
    message = bytes(index & 0xFF for index in range(sum(lengths)))
    begins = [sum(lengths[:index]) for index in range(len(lengths))]
    scatter = Scatter(
        [memoryview(message)[start : start + length] for start, length in zip(begins, lengths, strict=True)]
    )
    assert len(scatter) == len(message)
    end = min(end, len(message))
    segments = scatter.views(begin, end)
    assert b"".join(segments) == message[begin:end]
    assert all(segments), "a segment of no bytes would be a transfer for nothing"


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE + 3])
def test_pinned_memory_is_found_page_by_page_and_only_there(size: int) -> None:
    memory = HostMemory()
    other_pages = memory.pin(memoryview(b"o" * PAGE))
    buffer = memoryview(bytearray(range(256)) * 200)[:size]
    pages = memory.pin(buffer)
    assert b"".join(memory.view(*page) for page in pages) == buffer
    assert all(length <= PAGE for _, length in pages)
    last, length = pages[-1]
    for address, count in ((last, length + 1), (pages[0][0] - 1, 2), (last + length, 1)):
        with pytest.raises(UnpinnedError):
            memory.view(address, count)
    memory.unpin(pages[0][0])
    with pytest.raises(UnpinnedError):
        memory.view(*pages[0])
    assert memory.view(*other_pages[0]) == b"o" * PAGE
    assert len(memory) == 1

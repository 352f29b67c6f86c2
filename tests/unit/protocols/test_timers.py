"""The timer table of firmware and host libraries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocols.core.timers import Timers

STEPS = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 9), st.integers(0, 50)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("expire"), st.just(0), st.integers(0, 50)),
)


@given(st.lists(STEPS, max_size=200))
def test_timers_agree_with_a_plain_dictionary(steps: list[tuple[str, int, int]]) -> None:
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


def test_cancelled_timers_occupy_no_memory() -> None:
    timers: Timers[int] = Timers()
    for key in range(100_000):
        timers.set(key, 10**12 + key)
        if key >= 10:
            timers.cancel(key - 10)
    assert len(timers._heap) < 200
    assert timers.deadline == 10**12 + 99_990
    assert timers.expired(2 * 10**12) == list(range(99_990, 100_000))

"""Bookable servers: a job takes the first sufficient gap, and no time is booked twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.engine.loop import VirtualClock
from testbed.engine.server import BookableServer


def test_a_job_takes_the_first_gap_that_is_long_enough() -> None:
    server = BookableServer("bus", VirtualClock())
    assert server.reserve(100, 50) == 150
    assert server.reserve(0, 60) == 60  # before the first job
    assert server.reserve(0, 50) == 200  # 60 to 100 is too short
    assert server.reserve(0, 40) == 100  # the gap suffices
    assert server.reserve(0, 1) == 201
    assert server.waited == 150 + 60 + 200
    assert (server.busy, server.jobs, server.free) == (201, 5, 201)


def test_a_zero_cost_job_waits_for_the_current_one() -> None:
    server = BookableServer("bus", VirtualClock())
    server.reserve(100, 50)
    assert server.reserve(100, 0) == 100
    assert server.reserve(120, 0) == 150
    assert server.reserve(150, 0) == 150


def test_utilisation_counts_the_service_until_now() -> None:
    server = BookableServer("bus", VirtualClock())
    server.reserve(0, 100)
    server.reserve(300, 100)
    assert [server.utilisation(now) for now in (100, 200, 350, 400)] == [1.0, 0.5, 150 / 350, 0.5]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(0, 10)), max_size=60))
def test_no_time_is_booked_twice_and_no_earlier_gap_would_have_sufficed(jobs: list[tuple[int, int, int]]) -> None:
    """Compare with a table of all nanoseconds. Time advances between jobs, and no job is booked in the past."""
    clock = VirtualClock()
    server = BookableServer("bus", clock)
    is_taken = [False] * 10_000
    for lead, cost, delay in jobs:
        now = clock.time + lead
        start_time = now
        while any(is_taken[start_time : start_time + cost]) or (
            not cost and start_time and is_taken[start_time - 1] and is_taken[start_time]
        ):
            start_time += 1
        assert server.reserve(now, cost) == start_time + cost
        is_taken[start_time : start_time + cost] = [True] * cost
        clock.time += delay
    assert server.busy == sum(is_taken)
    assert round(server.utilisation(len(is_taken)) * len(is_taken)) == sum(is_taken)

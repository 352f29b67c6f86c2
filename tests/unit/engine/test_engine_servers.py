"""Servers: times of jobs and utilisation, compared with a simple simulation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import Server

JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 15)), min_size=1, max_size=40)
"""For each job: time since the previous job's arrival, and cost."""


def test_a_job_starts_at_once_on_a_free_server_and_waits_for_a_busy_one() -> None:
    bus = Server("bus")
    assert [bus.reserve(10, 5), bus.reserve(12, 5), bus.reserve(100, 1)] == [15, 20, 101]
    assert (bus.jobs, bus.busy, bus.waited, bus.free) == (3, 11, 3, 101)


def test_utilisation_is_the_share_of_busy_time_so_far() -> None:
    bus = Server("bus")
    bus.reserve(10, 30)
    bus.reserve(10, 60)  # until 100
    assert bus.utilisation(50) == 0.8
    assert bus.utilisation(100) == 0.9
    assert bus.utilisation(200) == 0.45
    assert bus.utilisation(0) == 0.0


def test_tasks_are_served_in_order_of_arrival() -> None:
    loop = Loop(VirtualClock())
    processor, ended = Server("NIC processor", loop), list[tuple[str, int]]()

    async def job(name: str, cost: int) -> None:
        await processor.use(cost)
        ended.append((name, loop.now()))

    for name, cost in (("a", 30), ("b", 5), ("c", 0)):
        loop.spawn(job(name, cost), name)
    loop.run()
    assert ended == [("a", 30), ("b", 35), ("c", 35)]


def test_the_job_of_a_cancelled_task_still_occupies_the_server() -> None:
    loop = Loop(VirtualClock())
    engine = Server("DMA engine", loop)

    async def job() -> int:
        await engine.use(100)
        return loop.now()

    first, second = loop.spawn(job(), "first"), loop.spawn(job(), "second")
    loop.at(10, lambda _: first.cancel())
    loop.run()
    assert first.cancelled
    assert second.result() == 200


def test_a_server_without_a_loop_can_only_be_reserved() -> None:
    loop = Loop(VirtualClock())
    bus = Server("bus")

    async def job() -> None:
        await bus.use(1)

    with pytest.raises(RuntimeError, match="server 'bus' has no loop"):
        loop.complete(job())


@given(jobs=JOBS)
def test_jobs_are_served_as_in_a_simulation(jobs: list[tuple[int, int]]) -> None:
    arrivals = []
    now = 0
    for pause, cost in jobs:
        now += pause
        arrivals.append((now, cost))
    served = service_times(arrivals)
    server = Server("core")
    assert [server.reserve(arrived, cost) for arrived, cost in arrivals] == [end for _, end in served]
    assert server.jobs == len(jobs)
    assert server.busy == sum(cost for _, cost in jobs)
    assert server.waited == sum(begin - arrival for (begin, _), (arrival, _) in zip(served, arrivals, strict=True))
    for moment in (now, now + 3, served[-1][1] + 5):
        busy = sum(begin <= n < end for n in range(moment) for begin, end in served)
        assert server.utilisation(moment) == pytest.approx(busy / moment if moment else 0.0)


def service_times(arrivals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the start and end of each job."""
    free_at, served = 0, []
    for arrived, cost in arrivals:
        begin = max(arrived, free_at)
        free_at = begin + cost
        served.append((begin, free_at))
    return served

"""Probes of a link between machines: the records of the sending and the receiving machine give one result."""

from __future__ import annotations

from typing import Any

from testbed.controller.probing.probe_plan import ProbePlan
from testbed.controller.spread_check import join_replies

CLOCK_OFFSET = 1_000  # the source's clock is ahead of the sink's
PLAN = ProbePlan(interval=100, burst=2, max_delay=0)


def joint_result(
    sent_times: list[int], arrived: list[tuple[int, int, bool]], plan: ProbePlan = PLAN, overrun: int = 0
) -> Any:
    source_reply = {"left": {"4": sent_times}, "overrun": {"4": overrun}}
    sink = {"came": {"4": arrived}, "others": {"4": (3, 300)}, "overrun": {"4": 1}}
    return join_replies("4", plan, source_reply, sink, CLOCK_OFFSET, 2.0)


def test_delays_use_one_clock_and_only_the_first_of_a_burst() -> None:
    probe_result = joint_result(
        [10, 20, 30, 40], [(0, 10 - CLOCK_OFFSET + 7, True), (1, 900, True), (2, 30 - CLOCK_OFFSET + 5, True)]
    )
    assert probe_result.delays == (5, 7)
    assert (probe_result.sent, probe_result.arrived) == (4, 3)
    assert (probe_result.other_frames, probe_result.other_bytes, probe_result.overrun, probe_result.seconds) == (
        3,
        300,
        1,
        2.0,
    )


def test_a_probe_that_the_kernel_rejected_was_not_sent() -> None:
    probe_result = joint_result([10, 0], [(0, 20, True)])
    assert (probe_result.sent, probe_result.arrived) == (1, 1)


def test_copies_overtaken_and_broken_frames_are_counted() -> None:
    arrived = [(1, 50, True), (0, 60, False), (0, 61, True), (-1, 62, False)]
    probe_result = joint_result([10, 20, 30], arrived)
    assert (probe_result.arrived, probe_result.duplicates, probe_result.overtaken, probe_result.corrupted) == (
        3,
        1,
        1,
        2,
    )


def test_frames_that_skip_the_delay_are_excluded_from_delays() -> None:
    plan = ProbePlan(interval=100, burst=1, max_delay=0, skip_below=50)
    probe_result = joint_result(
        [1000, 2000], [(0, 1000 - CLOCK_OFFSET + 60, True), (1, 2000 - CLOCK_OFFSET + 5, True)], plan
    )
    assert (probe_result.delays, probe_result.skipped) == ((60,), 1)


def test_a_delay_below_the_clocks_error_is_0_and_not_that_of_a_reordered_frame() -> None:
    probe_result = joint_result([1000], [(0, 1000 - CLOCK_OFFSET - 5, True)])
    assert (probe_result.delays, probe_result.skipped) == ((0,), 0)

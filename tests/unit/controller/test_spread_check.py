"""Probes of a link between machines: what the machine that sent them and the one where they came have seen is one result."""

from __future__ import annotations

from typing import Any

from testbed.controller.probing.probe_plan import Plan
from testbed.controller.spread_check import join_replies

AHEAD = 1_000  # of the source's clock to the sink's
PLAN = Plan(interval=100, burst=2, max_delay=0)


def result(left: list[int], arrived: list[tuple[int, int, bool]], plan: Plan = PLAN, overrun: int = 0) -> Any:
    source = {"left": {"4": left}, "overrun": {"4": overrun}}
    sink = {"came": {"4": arrived}, "others": {"4": (3, 300)}, "overrun": {"4": 1}}
    return join_replies("4", plan, source, sink, AHEAD, 2.0)


def test_delays_are_on_one_clock_and_only_of_the_first_of_a_burst() -> None:
    actual = result([10, 20, 30, 40], [(0, 10 - AHEAD + 7, True), (1, 900, True), (2, 30 - AHEAD + 5, True)])
    assert actual.delays == (5, 7)
    assert (actual.sent, actual.arrived) == (4, 3)
    assert (actual.other_frames, actual.other_bytes, actual.overrun, actual.seconds) == (3, 300, 1, 2.0)


def test_a_probe_that_the_kernel_did_not_take_was_not_sent() -> None:
    actual = result([10, 0], [(0, 20, True)])
    assert (actual.sent, actual.arrived) == (1, 1)


def test_copies_overtaken_and_broken_frames_are_counted() -> None:
    arrived = [(1, 50, True), (0, 60, False), (0, 61, True), (-1, 62, False)]
    actual = result([10, 20, 30], arrived)
    assert (actual.arrived, actual.duplicates, actual.overtaken, actual.corrupted) == (3, 1, 1, 2)


def test_frames_that_skip_the_delay_have_no_part_in_delays() -> None:
    plan = Plan(interval=100, burst=1, max_delay=0, skip_below=50)
    actual = result([1000, 2000], [(0, 1000 - AHEAD + 60, True), (1, 2000 - AHEAD + 5, True)], plan)
    assert (actual.delays, actual.skipped) == ((60,), 1)

"""Probes of a link between machines: what the machine that sent them and the one where they came have seen is one result."""

from __future__ import annotations

from typing import Any

from testbed.controller.probing.probe_plan import Plan
from testbed.controller.spread_check import join_replies

AHEAD = 1_000  # of the source's clock to the sink's
PLAN = Plan(interval=100, burst=2, max_delay=0)


def result(left: list[int], came: list[tuple[int, int, bool]], plan: Plan = PLAN, overrun: int = 0) -> Any:
    source = {"left": {"4": left}, "overrun": {"4": overrun}}
    sink = {"came": {"4": came}, "others": {"4": (3, 300)}, "overrun": {"4": 1}}
    return join_replies("4", plan, source, sink, AHEAD, 2.0)


def test_delays_are_on_one_clock_and_only_of_the_first_of_a_burst() -> None:
    found = result([10, 20, 30, 40], [(0, 10 - AHEAD + 7, True), (1, 900, True), (2, 30 - AHEAD + 5, True)])
    assert found.delays == (5, 7)
    assert (found.sent, found.arrived) == (4, 3)
    assert (found.other_frames, found.other_bytes, found.overrun, found.seconds) == (3, 300, 1, 2.0)


def test_a_probe_that_the_kernel_did_not_take_was_not_sent() -> None:
    found = result([10, 0], [(0, 20, True)])
    assert (found.sent, found.arrived) == (1, 1)


def test_copies_overtaken_and_broken_frames_are_counted() -> None:
    came = [(1, 50, True), (0, 60, False), (0, 61, True), (-1, 62, False)]
    found = result([10, 20, 30], came)
    assert (found.arrived, found.duplicates, found.overtaken, found.corrupted) == (3, 1, 1, 2)


def test_frames_that_skip_the_delay_have_no_part_in_delays() -> None:
    plan = Plan(interval=100, burst=1, max_delay=0, skip_below=50)
    found = result([1000, 2000], [(0, 1000 - AHEAD + 60, True), (1, 2000 - AHEAD + 5, True)], plan)
    assert (found.delays, found.skipped) == ((60,), 1)

"""Myrinet's switch counters in the findings of a run."""

from __future__ import annotations

from testbed.controller.verdict.counter_snapshots import switch_counts_since


def test_counts_before_a_run_are_excluded() -> None:
    before = {"s1": {"no_port": 3, "stops": 1}}
    now = {"s1": {"no_port": 5, "stops": 1}, "s2": {"no_port": 1, "stops": 0}}
    assert switch_counts_since(before, now) == {"s1": {"no_port": 2, "stops": 0}, "s2": {"no_port": 1, "stops": 0}}


def test_a_restarted_relay_counts_from_zero() -> None:
    assert switch_counts_since({"s1": {"no_port": 3, "stops": 1}}, {"s1": {"no_port": 2, "stops": 4}}) == {
        "s1": {"no_port": 2, "stops": 4}
    }

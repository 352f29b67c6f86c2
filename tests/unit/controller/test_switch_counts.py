"""Counters of switches within the span of a run."""

from __future__ import annotations

from testbed.controller.verdict.counter_snapshots import switch_counts_of, switch_counts_since
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.model import Description
from testbed.spec.resolver import resolve


def test_counts_before_a_run_are_excluded() -> None:
    before = {"s1": {"no_port": 3, "stops": 1}}
    now = {"s1": {"no_port": 5, "stops": 1}, "s2": {"no_port": 1, "stops": 0}}
    assert switch_counts_since(before, now) == {"s1": {"no_port": 2, "stops": 0}, "s2": {"no_port": 1, "stops": 0}}


def test_a_restarted_relay_counts_from_zero() -> None:
    assert switch_counts_since({"s1": {"no_port": 3, "stops": 1}}, {"s1": {"no_port": 2, "stops": 4}}) == {
        "s1": {"no_port": 2, "stops": 4}
    }


def test_stops_on_a_link_between_two_nics_are_counted_for_no_switch() -> None:
    layout = resolve(
        Description(
            name="c", nodes=[Node(name="n1"), Node(name="n2")], switches=[Switch(name="s1", kind="atm")],
            links=[Link(ends=["n1", "s1"]), Link(ends=["n1", "n2"], kind="atm")],
        )
    )  # fmt: skip
    links = {link.name: {"forward": {"stops": number}} for number, link in enumerate(layout.links, 3)}
    assert switch_counts_of(layout, {"switches": {"s1": {"full": 1}}, "links": links}) == {
        "s1": {"full": 1, "stops": 3}
    }

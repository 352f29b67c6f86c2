"""Targets of clusters over machines, computed from the rows of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.harness.rows import Row
from benchmarks.machines import bring_up, tunnels
from benchmarks.machines.targets import targets


def row(subject: str, contender: str, measure: str, samples: Sequence[float], hosts: int = 300) -> Row:
    return Row(subject, contender, measure, hosts, "s", tuple(samples), {})


def is_reached(rows: Sequence[Row], name: str) -> bool | None:
    return next(target.reached for target in targets(rows) if target.name == name)


@pytest.mark.parametrize(("seconds", "expected"), [(1.25, True), (1.26, False)])
def test_the_limit_of_bring_up_is_a_quarter_above_one_machines(seconds: float, expected: bool) -> None:
    rows = [
        row("star", bring_up.THREE, bring_up.BRING_UP, [seconds, 3.0, 9.0]),
        row("star", bring_up.ONE, bring_up.BRING_UP, [1.0, 3.0, 1.0]),
    ]
    assert is_reached(rows, "star of 300: bring-up over three machines to that on one") is expected


@pytest.mark.parametrize(("share", "expected"), [(1.0, True), (1.01, False)])
def test_the_limit_of_messages_is_one_per_node_and_phase(share: float, expected: bool) -> None:
    rows = [row("messages", bring_up.THREE, bring_up.MESSAGES.format("run"), [share])]
    assert is_reached(rows, "control messages per node: run") is expected
    assert is_reached(rows, "control messages per node: up") is None


@pytest.mark.parametrize(("measure", "ours"), [(tunnels.TCP, 0.94), (tunnels.ROUND_TRIP, 1.06)])
def test_a_links_limit_is_a_twentieth_worse_than_a_bare_vxlan(measure: str, ours: float) -> None:
    name = f"{tunnels.DIRECT}: {measure}, from a bare VXLAN's"
    for factor, expected in ((ours, False), (1 + (ours - 1) / 2, True), (2 - ours, True)):
        rows = [
            row(tunnels.SUBJECT, tunnels.DIRECT, measure, [factor]),
            row(tunnels.SUBJECT, tunnels.TESTBED, measure, [factor]),
            row(tunnels.SUBJECT, tunnels.BARE, measure, [1.0]),
        ]
        assert is_reached(rows, name) is expected

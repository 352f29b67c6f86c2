"""SSAM's state tables under the swarm's cases of requests: each transition has its row, and each row is taken.

Seeds are fixed in CI and fresh with TESTBED_LONG=1, which prints the first.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from protocols.ssam.states import CONNECTION, REQUEST, TABLES
from tests.sim import request_swarm
from tests.sim.request_swarm import Case
from tests.sim.ssam_state_watch import WATCHING
from tests.sim.state_watch import Watch, label, with_rows
from tests.unit.protocols.ssam_pair import COUNT, Pair, run

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
CASES = 500 if LONG else 6
MIN = 100 if LONG else 2
"""Minimum number of times that each row of the tables is taken."""
SELDOM = {
    label(table, table.row(state, event))
    for table, state, event in (
        (CONNECTION, "opening", "given up"),
        (CONNECTION, "open", "given up"),
        (CONNECTION, "open", "later incarnation"),
        (REQUEST, "awaited", "after the program's end"),
    )
}
"""Rows that only cases with a certain fault take, a few times each."""
MIN_SELDOM = 10 if LONG else 0
LATE = {label(CONNECTION, CONNECTION.row(state, "another session's cell")) for state in ("closed", "open")}
"""Rows of cells that arrive after a restart of their sender, which the simulation's short links do not deliver."""


def run_watched(case: Case) -> Counter[str]:
    return with_rows(partial(request_swarm.run, case), TABLES, WATCHING)


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(3600)
def test_every_case_passes_the_checks_and_all_rows_are_taken(record_property: Callable[[str, object], None]) -> None:
    swarm = replace(request_swarm.SWARMS["ssam"], run=run_watched)
    tally = swarm.run_many(range(FIRST, FIRST + CASES), chunk=3)
    failures = [f"{swarm.replay(seed)}: {reason}" for seed, reason in tally.failed.items()]
    assert not failures, "\n".join(failures[:10])
    rows_taken = {label(table, row): tally.rows[label(table, row)] for table in TABLES for row in table.rows}
    rarest = sorted(rows_taken, key=lambda name: rows_taken[name])
    record_property("note", f"swarm of SSAM: {CASES:,} cases from {FIRST} on")
    record_property("note", "swarm of SSAM, rows: " + ", ".join(f"{name} {rows_taken[name]:,}" for name in rarest))
    minima = {name: MIN_SELDOM if name in SELDOM else MIN for name in rarest if name not in LATE}
    assert not [f"{name}: {rows_taken[name]}" for name in rarest if rows_taken[name] < minima.get(name, 0)]


@pytest.mark.requires("interpreted")
def test_late_cells_take_the_rows_that_the_swarm_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    for watch_machine in WATCHING:
        watch_machine(monkeypatch, watch)
    pair = Pair()
    first = pair.nodes[0]
    run(first.library.request(1, COUNT, b"opens"))
    pair.settle()
    run(first.library.request(1, COUNT, b"late"))
    late_cell = first.outgoing.popleft()
    pair.restart(1)
    for _ in ("closed", "open"):
        pair.nodes[1].device.receive(0, late_cell)
        pair.nodes[1].library.handle_all()
        pair.settle()
    assert {label(CONNECTION, row) for row in CONNECTION.rows if watch.row_counts[row]} >= LATE
    assert not watch.unknown
    assert pair.nodes[1].counted == []

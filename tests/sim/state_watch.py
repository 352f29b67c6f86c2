"""Count the rows of state tables that a run takes, and record the transitions that no table has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import pytest

from protocols.core.states import Row, StateTable
from testbed.controller.conformance.trials import Violation

WatchStarter = Callable[[pytest.MonkeyPatch, "Watch"], None]


class Watch:
    """Rows taken so far, and transitions without a row: (state, event, next state)."""

    def __init__(self) -> None:
        self.row_counts: Counter[Row] = Counter()
        self.unknown: Counter[tuple[str, str, str, str]] = Counter()

    def record(self, table: StateTable, state: str, event: str, next_state: str) -> None:
        try:
            row = table.row(state, event)
        except KeyError:
            row = None
        if row is not None and row.next_state == next_state:
            self.row_counts[row] += 1
        else:
            self.unknown[table.name, state, event, next_state] += 1


def label(table: StateTable, row: Row) -> str:
    return f"{table.name}: {row.state} + {row.event}"


def with_rows(
    run: Callable[[], Counter[str]], tables: Sequence[StateTable], watching: Sequence[WatchStarter]
) -> Counter[str]:
    """Run a case under watch; return its counts and those of the state-table rows that it took, by `label`.

    Raises Violation of the case, or for a transition that no table has.
    """
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        for watch_machine in watching:
            watch_machine(patch, watch)
        counts = run()
    if watch.unknown:
        raise Violation(f"no row of a state table: {dict(watch.unknown)}")
    return counts + Counter({label(table, row): watch.row_counts[row] for table in tables for row in table.rows})


def coverage(tables: Sequence[StateTable], stateless: Collection[str], counts: Counter[str]) -> dict[str, int]:
    """Return how often each row of the tables was taken, and the values of the counters that no row raises (stateless).

    AssertionError if a counter is below the number of times that the rows that raise it were taken.
    """
    raised_counts: Counter[str] = Counter()
    for table in tables:
        for row in table.rows:
            raised_counts.update(dict.fromkeys(row.counters, counts[label(table, row)]))
    too_few = {name: (counts[name], count) for name, count in raised_counts.items() if counts[name] < count}
    assert not too_few, f"counters below the rows that raise them: {too_few}"
    row_counts = {label(table, row): counts[label(table, row)] for table in tables for row in table.rows}
    return row_counts | {name: counts[name] for name in sorted(stateless)}

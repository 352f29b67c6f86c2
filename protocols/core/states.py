"""State tables: a protocol's state machines as data.

Tests check the tables against the firmware: they observe each transition of the firmware, and count how often it takes
each row. A row also names the firmware counters that it increments; the firmware has exactly these (`check_counters`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Row(NamedTuple):
    """One transition: in `state`, `event` causes `action` and leads to `next_state`. counters: names of the counters that it
    increments."""

    state: str
    event: str
    action: str
    next_state: str
    counters: tuple[str, ...] = ()


class StateTable:
    """The transitions of a deterministic state machine: each row has a different state and event.

    initial: the first state. Raises ValueError for an ambiguous table, and for a state that cannot be reached from the
    initial one.
    """

    def __init__(self, name: str, initial: str, rows: tuple[Row, ...]) -> None:
        self.name = name
        self.initial = initial
        self.rows = rows
        self._by_state_and_event = {(row.state, row.event): row for row in rows}
        if len(self._by_state_and_event) < len(rows):
            raise ValueError(f"{name}: two rows have the same state and event")
        if unreachable := {row.state for row in rows} - self._reachable():
            raise ValueError(f"{name}: states that cannot be reached from {initial!r}: {sorted(unreachable)}")

    def row(self, state: str, event: str) -> Row:
        """Return the transition for an event in a state. Raises KeyError if the table has none."""
        return self._by_state_and_event[state, event]

    @property
    def counters(self) -> frozenset[str]:
        """The counters that its rows increment."""
        return frozenset(name for row in self.rows for name in row.counters)

    def markdown(self) -> str:
        """Format the table as Markdown."""
        lines = ["| state | event | action | next state | counters |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(row[:4])} | {', '.join(row.counters)} |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def _reachable(self) -> set[str]:
        reachable, size = {self.initial}, 0
        while len(reachable) > size:
            size = len(reachable)
            reachable |= {row.next_state for row in self.rows if row.state in reachable}
        return reachable


def check_counters(counters: type[DataclassInstance], tables: Sequence[StateTable], stateless: Collection[str]) -> None:
    """Check that the fields of a firmware's counters are the counters of the tables' rows and the stateless counters. Raises
    TypeError for a row without its counter, and for a counter without a row."""
    row_counters = frozenset[str]().union(*[table.counters for table in tables])
    declared = {field.name for field in fields(counters)}
    if both := row_counters & set(stateless):
        raise TypeError(f"counters must not be both in rows and stateless: {sorted(both)}")
    if differing := declared ^ (row_counters | set(stateless)):
        raise TypeError(f"counters must be in a row, or stateless, and in the class: {sorted(differing)}")

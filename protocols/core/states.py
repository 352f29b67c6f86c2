"""State tables: a protocol's state machines as data.

Tests check the tables against the firmware: they observe each transition of the firmware, and count how often each row
occurs. A row also names the counters that its transition increments. Firmware has no other counters, except those that
it lists as stateless (`check_counters`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Row(NamedTuple):
    """One transition: in `state`, `event` causes `action` and leads to `next_state`. counters: names of the counters
    that the transition increments."""

    state: str
    event: str
    action: str
    next_state: str
    counters: tuple[str, ...] = ()


class StateTable:
    """The transitions of a deterministic state machine: at most one row for a state and an event.

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
        if unreachable := {row.state for row in rows} - self._reachable_states():
            raise ValueError(f"{name}: states that cannot be reached from {initial!r}: {sorted(unreachable)}")

    def row(self, state: str, event: str) -> Row:
        """Return the transition for an event in a state. Raises KeyError if the table has none."""
        return self._by_state_and_event[state, event]

    @property
    def counters(self) -> frozenset[str]:
        """Names of the counters that the rows increment."""
        return frozenset(name for row in self.rows for name in row.counters)

    def format_markdown(self) -> str:
        """Format the table as Markdown."""
        lines = ["| state | event | action | next state | counters |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(row[:4])} | {', '.join(row.counters)} |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def _reachable_states(self) -> set[str]:
        reachable, size = {self.initial}, 0
        while len(reachable) > size:
            size = len(reachable)
            reachable |= {row.next_state for row in self.rows if row.state in reachable}
        return reachable


def check_counters(counters: type[DataclassInstance], tables: Sequence[StateTable], stateless: Collection[str]) -> None:
    """Check that the fields of a firmware's counters are the counters of the tables' rows and the stateless counters.
    Raises TypeError for a row without its counter, for a counter without a row, and for a counter of a row that is also
    listed as stateless."""
    row_counters = frozenset[str]().union(*[table.counters for table in tables])
    declared = {field.name for field in fields(counters)}
    if listed_twice := row_counters & set(stateless):
        raise TypeError(f"counters must not be both in rows and stateless: {sorted(listed_twice)}")
    if unmatched := declared ^ (row_counters | set(stateless)):
        raise TypeError(
            f"{counters.__name__}: every field must be in a row or stateless, and vice versa: {sorted(unmatched)}"
        )

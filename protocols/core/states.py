"""State tables: a protocol's state machines as data.

Tests check the tables against the firmware: they watch each transition that the firmware takes, and count how often it
takes each row. A row also names the firmware counters that it increments.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One transition: in `state`, `event` causes `action` and leads to `next_state`. counters: names of the counters
    incremented."""

    state: str
    event: str
    action: str
    next_state: str
    counters: tuple[str, ...] = ()


class StateTable:
    """The transitions of one state machine, deterministic: no two rows have the same state and event.

    initial: the first state. Raises ValueError for an ambiguous table, and for a state that cannot be reached from the
    initial one.
    """

    def __init__(self, name: str, initial: str, rows: tuple[Row, ...]) -> None:
        self.name = name
        self.initial = initial
        self.rows = rows
        self._by_cause = {(row.state, row.event): row for row in rows}
        if len(self._by_cause) < len(rows):
            raise ValueError(f"{name}: two rows have the same state and event")
        if unreachable := {row.state for row in rows} - self._reachable():
            raise ValueError(f"{name}: states that cannot be reached from {initial!r}: {sorted(unreachable)}")

    def row(self, state: str, event: str) -> Row:
        """Return the transition for an event in a state. Raises KeyError if the table has none."""
        return self._by_cause[state, event]

    @property
    def counters(self) -> frozenset[str]:
        """The counters that its rows increment."""
        return frozenset(name for row in self.rows for name in row.counters)

    def mermaid(self) -> str:
        """Format the machine as a Mermaid state diagram."""
        states = list(dict.fromkeys(state for row in self.rows for state in (row.state, row.next_state)))
        ids = {state: state.replace(" ", "_") for state in states}
        lines = ["stateDiagram-v2"]
        lines += [f'    state "{state}" as {ids[state]}' for state in states if ids[state] != state]
        lines.append(f"    [*] --> {ids[self.initial]}")
        lines += [f"    {ids[row.state]} --> {ids[row.next_state]}: {row.event} / {row.action}" for row in self.rows]
        return "\n".join(lines) + "\n"

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
